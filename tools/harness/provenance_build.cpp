// Alone in its file: the generated header changes with every commit, and only this is compiled again.
#include "provenance_git.hpp"

#include "tools/harness/provenance.hpp"

namespace warpmeter::harness {

const BuildInfo& build_info() {
  static const BuildInfo info = [] {
    BuildInfo built;
    built.project = WM_PROJECT_VERSION;
    built.git_sha = WM_GIT_SHA;
    if (!built.git_sha.empty()) built.dirty = WM_GIT_DIRTY;
    built.build_type = WM_BUILD_TYPE;
    built.compiler = WM_COMPILER;
    built.sanitizers = WM_SANITIZERS;
    built.cuda = WM_CUDA_TOOLKIT;
    return built;
  }();
  return info;
}

}  // namespace warpmeter::harness
