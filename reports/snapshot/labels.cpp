#include "reports/snapshot/labels.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace warpmeter::reports::snapshot {
namespace {

// What stays longest comes first: it lies at the bottom of a picture.
constexpr std::array<std::string_view, 7> kCategories = {"parameters",  "inputs", "optimizer state", "gradients",
                                                         "activations", "logits", "workspace"};
constexpr std::string_view kUnknownCategory = "unknown";

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool in_python(std::string_view filename) {
  return filename.ends_with(".py") || filename.ends_with(".ipynb") || filename.starts_with("<");
}
bool in_torch(std::string_view filename) {
  return filename.starts_with("torch/") || has(filename, "/torch/") || filename.starts_with("<frozen");
}

/// Frames of the unwinder, the interpreter and the process's start; what PyTorch's own tools leave out, and a few more.
bool is_noise(std::string_view name, std::string_view filename) {
  if (in_python(filename)) return false;
  constexpr std::array<std::string_view, 16> kNames = {"unwind::unwind",  "CapturedTraceback::gather",
                                                       "gather_with_cpp", "__libc_",
                                                       "_start",          "PyEval_",
                                                       "PyObject_",       "PyFunction_",
                                                       "PyCMethod_",      "PyMethod_",
                                                       "PyType_",         "PyRun_",
                                                       "Py_RunMain",      "Py_BytesMain",
                                                       "_PyRun_",         "PyCode_"};
  return std::any_of(kNames.begin(), kNames.end(), [&](std::string_view part) { return has(name, part); }) ||
         (name.starts_with("??") && filename.starts_with("??"));
}

/// "at::_ops::addmm::call(...)" is aten::addmm.
std::string_view aten_operation(std::string_view name) {
  constexpr std::string_view kPrefix = "at::_ops::";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  return name.substr(0, name.find("::"));
}

/// "layer 3", "block.12", "LAYER_3": a word and a number.
bool names_a_layer(std::string_view name) {
  for (const std::string_view word : {"layer", "block"}) {
    if (name.size() <= word.size()) continue;
    const bool same = std::equal(word.begin(), word.end(), name.begin(), [](char a, char b) {
      return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
    });
    if (!same) continue;
    std::string_view rest = name.substr(word.size());
    const std::size_t digits = rest.find_first_not_of(" ._-");
    if (digits == std::string_view::npos) continue;
    rest.remove_prefix(digits);
    if (rest.find_first_not_of("0123456789") == std::string_view::npos) return true;
  }
  return false;
}

/// "QKV_MATMUL", as this suite writes operations: a frame inside of it says what is allocated. No phase ("FWD_STEP").
bool names_an_operation(std::string_view name) {
  return name.size() > 2 && !name.ends_with("_STEP") && !names_a_layer(name) &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string_view::npos;
}

/// A C++ function's name without its arguments, and no longer than people read.
std::string short_name(std::string_view name) {
  if (const std::size_t paren = name.find('('); paren != std::string_view::npos && paren > 0 && has(name, "::")) {
    // "(anonymous namespace)" is no argument list.
    const std::size_t from = name.starts_with("(anonymous") ? name.find(')') : 0;
    std::size_t cut = name.find('(', from + 1);
    while (cut != std::string_view::npos && name.substr(cut).starts_with("(anonymous")) cut = name.find('(', cut + 1);
    name = name.substr(0, cut);
  }
  constexpr std::size_t kMost = 96;
  return name.size() <= kMost ? std::string(name) : std::string(name.substr(0, kMost - 3)) + "...";
}

std::string place(std::string_view filename, std::int64_t line) {
  std::string text(base_name(filename));
  if (line > 0) text.append(1, ':').append(std::to_string(line));
  return text;
}

}  // namespace

Labels::Labels(const Snapshot& snapshot) : snapshot_(snapshot) {
  // What nobody knows mostly was there before the trace, and stays.
  categories_.push_back(texts_.intern(kUnknownCategory));
  for (const std::string_view category : kCategories) categories_.push_back(texts_.intern(category));
  own_category_.reserve(snapshot.fields.size());
  for (FieldsId id = 0; id < snapshot.fields.size(); ++id) {
    const TextId category = texts_.intern(snapshot.more_text(id, "category"));
    own_category_.push_back(category);
    if (category == 0 || texts_[category] == kUnknownCategory) continue;
    if (std::find(categories_.begin(), categories_.end(), category) == categories_.end()) {
      categories_.push_back(category);
    }
  }
  noise_.reserve(snapshot.stacks.frame_count());
  for (std::uint32_t i = 0; i < snapshot.stacks.frame_count(); ++i) {
    const Frame& frame = snapshot.stacks.frame(i);
    noise_.push_back(is_noise(snapshot.text(frame.name), snapshot.text(frame.filename)) ? 1 : 0);
  }
  labels_.reserve(snapshot.stacks.size());
  for (StackId stack = 0; stack < snapshot.stacks.size(); ++stack) labels_.push_back(label(stack));
}

StackLabels Labels::label(StackId stack) {
  StackLabels labels;
  std::string operation, layer, source, python;
  bool aten = false, own = false, optimizer = false, optimizer_state = false, backward = false, library = false,
       forward = false, module = false;
  for (const std::uint32_t index : snapshot_.stacks[stack]) {
    if (noise_[index] != 0) continue;
    const Frame& frame = snapshot_.stacks.frame(index);
    const std::string_view name = snapshot_.text(frame.name);
    const std::string_view filename = snapshot_.text(frame.filename);
    const bool is_python = in_python(filename);
    if (const auto found = aten_operation(name); !aten && !found.empty()) {
      operation = "aten::" + std::string(found);
      aten = true;
    } else if (!aten && !own && !is_python && names_an_operation(name)) {
      operation = name;
      own = true;
    } else if (operation.empty() && !name.starts_with("c10::") && !name.starts_with("at::")) {
      operation = is_python ? place(filename, frame.line) + " " + std::string(name) : short_name(name);
    }
    if (layer.empty() && names_a_layer(name)) layer = name;
    const bool known_file = !filename.empty() && !filename.starts_with("??");
    if (is_python && !in_torch(filename)) {
      // The call site of somebody else's code: the first one is the closest.
      const std::string here = place(filename, frame.line) + " " + std::string(name);
      if (python.empty()) python = here;
    }
    if (source.empty() && known_file && !has(name, "::")) source = place(filename, frame.line);

    optimizer |= is_python && has(filename, "torch/optim/");
    optimizer_state |= is_python && has(filename, "torch/optim/") && name == "_init_group";
    backward |= has(name, "autograd::Engine::") || has(name, "Backward0::apply") || name == "_engine_run_backward";
    library |= has(name, "CUDABlasHandle") || has(name, "cublas") || has(name, "cudnn");
    forward |= is_python && (name == "forward" || name == "_call_impl");
    module |= is_python && has(filename, "torch/nn/") &&
              (name == "__init__" || name == "_apply" || name == "convert" || name == "to" || name == "cuda" ||
               name == "reset_parameters");
  }
  if (layer.empty()) layer = python;
  if (!python.empty()) source = python;
  if (operation.empty()) operation = snapshot_.stacks[stack].empty() ? "(no frames)" : "(unnamed frames)";
  const char* const category = optimizer_state ? "optimizer state"
                               : optimizer     ? "workspace"
                               : backward      ? "gradients"
                               : library       ? "workspace"
                               : forward       ? "activations"
                               : module        ? "parameters"
                                               : "unknown";
  labels.operation = texts_.intern(operation);
  labels.layer = texts_.intern(layer);
  labels.source = texts_.intern(source);
  labels.category = texts_.intern(category);
  return labels;
}

std::vector<std::string> Labels::frames(StackId stack) const {
  std::vector<std::string> lines;
  for (const std::uint32_t index : snapshot_.stacks[stack]) {
    if (noise_[index] != 0) continue;
    const Frame& frame = snapshot_.stacks.frame(index);
    const std::string_view filename = snapshot_.text(frame.filename);
    std::string line = short_name(snapshot_.text(frame.name));
    if (!filename.empty() && !filename.starts_with("??")) line += " (" + place(filename, frame.line) + ")";
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace warpmeter::reports::snapshot
