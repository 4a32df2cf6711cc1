#include "tests/testing/same_fields.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"

namespace optshard::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

bool IsMessage(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

std::string Text(const Message& message, const FieldDescriptor& field) {
  std::string text;
  TextFormat::PrintFieldValueToString(message, &field, -1, &text);
  return text;
}

std::string Texts(const Message& message, const FieldDescriptor& field) {
  std::string texts;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    std::string text;
    TextFormat::PrintFieldValueToString(message, &field, i, &text);
    absl::StrAppend(&texts, text, "\n");
  }
  return texts;
}

// The paths that all elements have in common.
std::vector<std::string> SameInAll(const Message& sent, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *sent.GetReflection();
  std::vector<std::string> same;
  for (int i = 0; i < reflection.FieldSize(sent, &field); ++i) {
    const Message& element = reflection.GetRepeatedMessage(sent, &field, i);
    const std::unique_ptr<Message> plain(element.New());
    std::vector<std::string> of_element = SameFields(element, *plain);
    if (i == 0) {
      same = of_element;
      continue;
    }
    same.erase(std::remove_if(same.begin(), same.end(),
                              [&](const std::string& path) {
                                return std::find(of_element.begin(), of_element.end(), path) ==
                                       of_element.end();
                              }),
               same.end());
  }
  return same;
}

}  // namespace

std::vector<std::string> SameFields(const Message& sent, const Message& plain) {
  const google::protobuf::Reflection& reflection = *sent.GetReflection();
  std::vector<std::string> same;
  for (int i = 0; i < sent.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *sent.GetDescriptor()->field(i);
    if (field.real_containing_oneof() != nullptr && !reflection.HasField(sent, &field)) continue;
    std::vector<std::string> within;
    if (field.is_repeated()) {
      if (Texts(sent, field) == Texts(plain, field)) {
        same.push_back(field.name());
      } else if (IsMessage(field)) {
        within = SameInAll(sent, field);
      }
    } else if (!IsMessage(field)) {
      if (Text(sent, field) == Text(plain, field)) same.push_back(field.name());
    } else if (!reflection.HasField(sent, &field)) {
      same.push_back(field.name());
    } else {
      within =
          SameFields(reflection.GetMessage(sent, &field), reflection.GetMessage(plain, &field));
    }
    for (const std::string& path : within) same.push_back(absl::StrCat(field.name(), ".", path));
  }
  return same;
}

}  // namespace optshard::testing
