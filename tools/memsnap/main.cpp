#include "tools/memsnap/memsnap.hpp"

int main(int argc, char** argv) {
  return warpmeter::memsnap::run_memsnap(argc, argv);
}
