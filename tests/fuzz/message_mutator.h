// Changes protobuf messages at random, by what reflection says of their fields.
#ifndef OPTSHARD_TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define OPTSHARD_TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace optshard::testing {

// The same seed and the same calls give the same messages. Thread-compatible.
class MessageMutator {
 public:
  explicit MessageMutator(uint64_t seed) : random_(seed) {}

  // The numbers and texts of the message may be put into other fields from now on.
  void Learn(const google::protobuf::Message& message);
  // Forgets what it has learned.
  void Forget();

  // Changes one field, of the message or of one within it: sets or clears it, adds, removes or
  // copies an element. Numbers are mostly those where sums and sizes go wrong; texts stay valid
  // UTF-8.
  void Mutate(google::protobuf::Message* message);

  // In [0, end); end is at least 1.
  uint64_t Below(uint64_t end) { return random_() % end; }

 private:
  void SetSingular(google::protobuf::Message* message,
                   const google::protobuf::FieldDescriptor* field);
  void ChangeRepeated(google::protobuf::Message* message,
                      const google::protobuf::FieldDescriptor* field);
  void AddElement(google::protobuf::Message* message,
                  const google::protobuf::FieldDescriptor* field);
  // From `old`, the field's value.
  uint64_t Number(uint64_t old);
  int Enumerator(const google::protobuf::FieldDescriptor* field);
  std::string Text(const std::string& old, bool any_bytes);

  std::mt19937_64 random_;
  std::vector<uint64_t> numbers_;
  std::vector<std::string> texts_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_FUZZ_MESSAGE_MUTATOR_H_
