#include "tests/fuzz/message_mutator.h"

#include <limits>

#include "google/protobuf/descriptor.h"

namespace optshard::testing {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

constexpr int kMostElements = 64;
constexpr size_t kLongestText = 20'000;

// As bits: a field takes as many of the low ones as it has.
constexpr uint64_t kNumbers[] = {
    0,
    1,
    2,
    static_cast<uint64_t>(std::numeric_limits<int8_t>::max()),
    std::numeric_limits<uint16_t>::max(),
    65536,
    static_cast<uint64_t>(std::numeric_limits<int32_t>::max()),
    static_cast<uint64_t>(std::numeric_limits<int32_t>::min()),
    uint64_t{1} << 31,
    std::numeric_limits<uint32_t>::max(),
    uint64_t{1} << 32,
    uint64_t{1} << 40,
    uint64_t{1} << 62,
    static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
    static_cast<uint64_t>(std::numeric_limits<int64_t>::min()),
    std::numeric_limits<uint64_t>::max(),
};

struct Place {
  Message* message;
  const FieldDescriptor* field;
};

void FindPlaces(Message* message, std::vector<Place>& places) {
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    places.push_back({message, field});
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_repeated()) {
      for (int e = 0; e < reflection.FieldSize(*message, field); ++e) {
        FindPlaces(reflection.MutableRepeatedMessage(message, field, e), places);
      }
    } else if (reflection.HasField(*message, field)) {
      FindPlaces(reflection.MutableMessage(message, field), places);
    }
  }
}

// Where a text may be cut so that it stays valid UTF-8: at the first such place from `at` on.
size_t CutAt(const std::string& text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

void MessageMutator::Learn(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool repeated = field->is_repeated();
    const int count = repeated ? reflection.FieldSize(message, field) : 1;
    for (int e = 0; e < count; ++e) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          Learn(repeated ? reflection.GetRepeatedMessage(message, field, e)
                         : reflection.GetMessage(message, field));
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          texts_.push_back(repeated ? reflection.GetRepeatedString(message, field, e)
                                    : reflection.GetString(message, field));
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          numbers_.push_back(repeated ? reflection.GetRepeatedInt64(message, field, e)
                                      : reflection.GetInt64(message, field));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          if (!repeated) numbers_.push_back(reflection.GetUInt64(message, field));
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          if (!repeated) numbers_.push_back(reflection.GetInt32(message, field));
          break;
        default:
          break;
      }
    }
  }
}

void MessageMutator::Forget() {
  numbers_.clear();
  texts_.clear();
}

void MessageMutator::Mutate(Message* message) {
  std::vector<Place> places;
  FindPlaces(message, places);
  if (places.empty()) return;
  const Place place = places[Below(places.size())];
  if (place.field->is_repeated()) {
    ChangeRepeated(place.message, place.field);
  } else if (Below(8) == 0) {
    place.message->GetReflection()->ClearField(place.message, place.field);
  } else {
    SetSingular(place.message, place.field);
  }
}

uint64_t MessageMutator::Number(uint64_t old) {
  switch (Below(6)) {
    case 0:
      return old + 1;
    case 1:
      return old - 1;
    case 2:
      return old ^ (uint64_t{1} << Below(64));
    case 3:
      return numbers_.empty() ? 0 : numbers_[Below(numbers_.size())] + Below(3) - 1;
    case 4:
      return random_();
    default:
      // Also a few less: what is added to it may be more than one.
      return kNumbers[Below(std::size(kNumbers))] - Below(4);
  }
}

int MessageMutator::Enumerator(const FieldDescriptor* field) {
  if (Below(4) == 0) return static_cast<int>(Number(0));
  return field->enum_type()
      ->value(static_cast<int>(Below(field->enum_type()->value_count())))
      ->number();
}

std::string MessageMutator::Text(const std::string& old, bool any_bytes) {
  std::string text = old;
  switch (Below(6)) {
    case 0:
      return "";
    case 1:
      return texts_.empty() ? "x" : texts_[Below(texts_.size())];
    case 2:
      text.resize(CutAt(text, Below(text.size() + 1)));
      break;
    case 3:
      // Two bytes a letter, and an odd place to begin: limits fall inside of a letter.
      for (uint64_t letters = Below(4'000); letters > 0; --letters) text += "\xc3\xa4";
      break;
    case 4:
      text += std::string(1, static_cast<char>(Below(any_bytes ? 256 : 128)));
      break;
    default:
      // A number as text, such as a page token.
      text = std::to_string(static_cast<int64_t>(Number(Below(100))));
      break;
  }
  if (text.size() > kLongestText) text.resize(CutAt(text, kLongestText));
  return text;
}

void MessageMutator::SetSingular(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      reflection.SetInt32(message, field,
                          static_cast<int32_t>(Number(reflection.GetInt32(*message, field))));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      reflection.SetInt64(message, field,
                          static_cast<int64_t>(Number(reflection.GetInt64(*message, field))));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      reflection.SetUInt32(message, field,
                           static_cast<uint32_t>(Number(reflection.GetUInt32(*message, field))));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      reflection.SetUInt64(message, field, Number(reflection.GetUInt64(*message, field)));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      reflection.SetDouble(message, field, static_cast<double>(Number(0)));
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      reflection.SetFloat(message, field, static_cast<float>(Number(0)));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection.SetBool(message, field, Below(2) == 0);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      reflection.SetEnumValue(message, field, Enumerator(field));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(message, field,
                           Text(reflection.GetString(*message, field),
                                field->type() == FieldDescriptor::TYPE_BYTES));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      Mutate(reflection.MutableMessage(message, field));
      break;
  }
}

void MessageMutator::ChangeRepeated(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  const int size = reflection.FieldSize(*message, field);
  switch (Below(4)) {
    case 0:
      if (size > 0) reflection.RemoveLast(message, field);
      break;
    case 1:
      if (size > 1) {
        reflection.SwapElements(message, field, static_cast<int>(Below(size)),
                                static_cast<int>(Below(size)));
      }
      break;
    case 2:
      for (uint64_t more = Below(kMostElements); more > 0; --more) AddElement(message, field);
      break;
    default:
      AddElement(message, field);
      break;
  }
}

void MessageMutator::AddElement(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  const int size = reflection.FieldSize(*message, field);
  if (size >= kMostElements) return;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* added = reflection.AddMessage(message, field);
      if (size > 0 && Below(2) == 0) {
        added->CopyFrom(
            reflection.GetRepeatedMessage(*message, field, static_cast<int>(Below(size))));
      }
      break;
    }
    case FieldDescriptor::CPPTYPE_INT64:
      reflection.AddInt64(message, field, static_cast<int64_t>(Number(1)));
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      reflection.AddInt32(message, field, static_cast<int32_t>(Number(1)));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.AddString(message, field, Text("", field->type() == FieldDescriptor::TYPE_BYTES));
      break;
    default:
      break;  // no request has others
  }
}

}  // namespace optshard::testing
