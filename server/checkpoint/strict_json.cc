#include "server/checkpoint/strict_json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/utf8_prefix.h"
#include "server/checkpoint/name_escape.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

// Parts of a foreign text that stand in a message.
constexpr size_t kMostShown = 200;

std::string Shown(absl::string_view text) { return EscapeName(Utf8Prefix(text, kMostShown)); }

// Builds the value, and stops at what a plain parser lets pass.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Stop("binary data"); }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      return Stop(absl::StrCat("the name \"", Shown(name), "\" is twice in one object"));
    }
    name_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    return Stop(absl::StrCat("at byte ", position, ": ", Shown(error.what())));
  }

  Json Take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool Stop(std::string error) {
    error_ = std::move(error);
    return false;
  }

  bool Add(Json value) { return Place(std::move(value)) != nullptr; }

  bool Open(Json container) {
    if (open_.size() == static_cast<size_t>(kMaxJsonDepth)) {
      return Stop(absl::StrCat("it is more than ", kMaxJsonDepth, " levels deep"));
    }
    Json* placed = Place(std::move(container));
    if (placed != nullptr) open_.push_back(placed);
    return placed != nullptr;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Pointers into a container stay good while it does not grow, and it does not while one within it
  // is open.
  Json* Place(Json value) {
    if (++values_ > kMaxJsonValues) {
      Stop(absl::StrCat("it has more than ", kMaxJsonValues, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& container = *open_.back();
    if (container.is_array()) {
      container.push_back(std::move(value));
      return &container.back();
    }
    return &(container[std::move(name_)] = std::move(value));
  }

  Json root_;
  std::vector<Json*> open_;
  std::string name_;
  std::string error_;
  int64_t values_ = 0;
};

const Json& NoArray() {
  static const Json& none = *new Json(Json::array());
  return none;
}
const Json& NoObject() {
  static const Json& none = *new Json(Json::object());
  return none;
}
const Json& Null() {
  static const Json& none = *new Json();
  return none;
}

}  // namespace

absl::StatusOr<Json> ParseStrictJson(absl::string_view text) {
  // The parser takes it for the end of the text.
  const size_t nul = text.find('\0');
  if (nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: at byte ", nul, ": a NUL byte"));
  }
  // The parser passes over it; others do not.
  if (absl::StartsWith(text, "\xef\xbb\xbf")) {
    return absl::InvalidArgumentError("not JSON: at byte 0: a byte order mark");
  }
  StrictBuilder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", builder.error()));
  }
  return builder.Take();
}

absl::StatusOr<std::string> JsonQuoted(absl::string_view text) {
  try {
    return Json(std::string(text)).dump();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("the text is not UTF-8");
  }
}

bool HasControlCharacters(absl::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return true;
    // U+0080 to U+009F.
    const bool two = byte == 0xc2 && i + 1 < text.size();
    if (two && static_cast<unsigned char>(text[i + 1]) < 0xa0) return true;
  }
  return false;
}

JsonFields::JsonFields(const Json& value, std::string where, absl::Status& error)
    : value_(value.is_object() ? value : NoObject()), where_(std::move(where)), error_(error) {
  if (!value.is_object() && error_.ok()) {
    error_ = absl::InvalidArgumentError(absl::StrCat(where_.empty() ? "the document" : where_,
                                                     " is ", value.type_name(), ", not an object"));
  }
}

bool JsonFields::Has(absl::string_view name) const {
  return value_.find(std::string(name)) != value_.end();
}

const Json& JsonFields::Value(absl::string_view name) const {
  const auto found = value_.find(std::string(name));
  return found == value_.end() ? Null() : *found;
}

int64_t JsonFields::Int(absl::string_view name, int64_t least, int64_t most) const {
  const Json& value = Value(name);
  const std::string range = absl::StrCat("expected a whole number from ", least, " to ", most);
  if (!value.is_number_integer()) {
    Refuse(name, absl::StrCat("it is ", Has(name) ? value.type_name() : "missing", ", ", range));
    return 0;
  }
  const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
  const int64_t number = too_large ? INT64_MAX : value.get<int64_t>();
  if (too_large || number < least || number > most) {
    Refuse(name, absl::StrCat("it is ", value.dump(), ", ", range));
    return 0;
  }
  return number;
}

bool JsonFields::Flag(absl::string_view name) const {
  const Json& value = Value(name);
  if (value.is_boolean()) return value.get<bool>();
  Refuse(name, absl::StrCat("it is ", Has(name) ? value.type_name() : "missing",
                            ", expected true or false"));
  return false;
}

std::string JsonFields::Text(absl::string_view name, size_t most_bytes) const {
  const Json& value = Value(name);
  if (!value.is_string()) {
    Refuse(name,
           absl::StrCat("it is ", Has(name) ? value.type_name() : "missing", ", expected a text"));
    return "";
  }
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > most_bytes) {
    Refuse(name, absl::StrCat("it has ", text.size(), " bytes, at most ", most_bytes));
    return "";
  }
  if (HasControlCharacters(text)) {
    Refuse(name, "it has control characters");
    return "";
  }
  return text;
}

const Json& JsonFields::Array(absl::string_view name, size_t most) const {
  const Json& value = Value(name);
  if (!value.is_array()) {
    Refuse(name,
           absl::StrCat("it is ", Has(name) ? value.type_name() : "missing", ", expected a list"));
    return NoArray();
  }
  if (value.size() > most) {
    Refuse(name, absl::StrCat("it has ", value.size(), " elements, at most ", most));
    return NoArray();
  }
  return value;
}

const Json& JsonFields::Object(absl::string_view name) const {
  const Json& value = Value(name);
  if (value.is_object()) return value;
  Refuse(name,
         absl::StrCat("it is ", Has(name) ? value.type_name() : "missing", ", expected an object"));
  return NoObject();
}

std::string JsonFields::Place(absl::string_view name) const {
  return where_.empty() ? std::string(name) : absl::StrCat(where_, ".", name);
}

std::string JsonFields::Place(absl::string_view name, size_t index) const {
  return absl::StrCat(Place(name), "[", index, "]");
}

void JsonFields::Refuse(absl::string_view name, absl::string_view why) const {
  if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat(Place(name), ": ", why));
}

}  // namespace optshard
