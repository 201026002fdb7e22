#include "tools/harness/row_option.hpp"

#include <utility>

namespace warpmeter::harness {

OptionSpec value_option(std::string name, std::string metavar, std::string fallback, std::string accepted,
                        std::string help, std::string example) {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.metavar = std::move(metavar);
  spec.default_text = std::move(fallback);
  spec.accepted = std::move(accepted);
  spec.help = std::move(help);
  spec.example = std::move(example);
  return spec;
}

OptionSpec row_option(std::string name, std::string metavar, std::string fallback, std::string accepted,
                      std::string help, std::string example) {
  OptionSpec spec = value_option(std::move(name), std::move(metavar), std::move(fallback), std::move(accepted),
                                 std::move(help), std::move(example));
  spec.group = "Configurations";
  spec.row_option = true;
  return spec;
}

}  // namespace warpmeter::harness
