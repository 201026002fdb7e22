#include "reports/detail/json_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "reports/detail/utf8.hpp"

namespace warpmeter::reports::detail {

void append_json(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[static_cast<unsigned char>(c) & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_json(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  if (number == 0 && std::signbit(number)) {
    out += "-0.0";  // "-0" reads back as the integer 0
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  out.append(buffer, end);
}

void append_json(std::string& out, const Value& value, int depth) {
  if (const auto* boolean = value.as_bool()) {
    out += *boolean ? "true" : "false";
  } else if (const auto* integer = value.as_int()) {
    out += std::to_string(*integer);
  } else if (const auto* number = value.as_double()) {
    append_json(out, *number);
  } else if (const auto* text = value.as_string()) {
    append_json(out, std::string_view(*text));
  } else if (const auto* array = value.as_array()) {
    if (depth >= kMaxDepth) throw std::logic_error("a value is nested too deeply to be written");
    out += '[';
    bool first = true;
    for (const Value& element : *array) {
      if (!first) out += ", ";
      first = false;
      append_json(out, element, depth + 1);
    }
    out += ']';
  } else if (const auto* object = value.as_object()) {
    append_json(out, *object, depth);
  } else {
    out += "null";
  }
}

void append_json(std::string& out, const Object& object, int depth) {
  if (depth >= kMaxDepth) throw std::logic_error("a value is nested too deeply to be written");
  ObjectText text(out);
  text.add(object, depth + 1);
  text.close();
}

void append_json(std::string& out, const std::vector<std::string>& texts) {
  out += '[';
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += ", ";
    append_json(out, std::string_view(texts[i]));
  }
  out += ']';
}

void ObjectText::name(std::string_view name) {
  if (!names_.empty()) out_ += ", ";
  // As written: two names that differ in broken bytes alone would be one in the file.
  if (!names_.insert(valid_utf8(name)).second) {
    throw std::logic_error("field '" + std::string(name) + "' comes twice in one object");
  }
  append_json(out_, name);
  out_ += ": ";
}

void ObjectText::add(std::string_view name, const Value& value, int depth) {
  this->name(name);
  append_json(out_, value, depth);
}

void ObjectText::add(const Object& object, int depth) {
  for (const auto& [name, value] : object.fields()) add(name, value, depth);
}

bool is_samples(std::string_view name, const Value& value) {
  return name.find("_samples_") != std::string_view::npos && (value.is_null() || value.as_array() != nullptr);
}

void append_row(std::string& out, const Row& row, bool samples, std::string_view type,
                const std::vector<std::string>* row_keys) {
  const auto is_key = [&](const std::string& name) {
    return std::find(row_keys->begin(), row_keys->end(), name) != row_keys->end();
  };
  ObjectText text(out);
  if (!type.empty()) text.add("type", type);
  for (const auto& [name, value] : row.configuration.fields()) {
    if (row_keys != nullptr && !is_key(name)) {
      throw std::logic_error("row_keys lacks the configuration field '" + name + "'");
    }
    text.add(name, value);
  }
  for (const auto& [name, value] : row.figures.fields()) {
    if (row_keys != nullptr && is_key(name)) throw std::logic_error("row_keys names the figure '" + name + "'");
    if (samples || !is_samples(name, value)) text.add(name, value);
  }
  for (const std::string_view name : {"status", "reason", "rerun"}) {
    if (row.configuration.has(name) || row.figures.has(name)) {
      throw std::logic_error("a row's field must not be called '" + std::string(name) + "'");
    }
    text.add(name, *field(row, name));
  }
  text.close();
}

void append_envelope(std::string& out, const Document& document, std::string_view separator) {
  auto key = [&, first = true](std::string_view name) mutable {
    if (!first) out += ',';
    first = false;
    out += separator;
    append_json(out, name);
    out += ": ";
  };
  key("schema");
  append_json(out, std::string_view(document.schema));
  key("tool");
  append_json(out, std::string_view(document.tool));
  key("version");
  append_json(out, document.version);
  key("argv");
  append_json(out, document.argv);
  key("started_at");
  append_json(out, std::string_view(document.started_at));
  key("device");
  append_json(out, document.device);
  key("libraries");
  append_json(out, document.libraries);
  key("settings");
  append_json(out, document.settings);
  key("row_keys");
  append_json(out, document.row_keys);
}

}  // namespace warpmeter::reports::detail
