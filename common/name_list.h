// Names in a message, which stays readable and short however many there are.
#ifndef OPTSHARD_COMMON_NAME_LIST_H_
#define OPTSHARD_COMMON_NAME_LIST_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace optshard {

// Counts all, and keeps the first. Thread-compatible value type.
class NameList {
 public:
  void Add(absl::string_view name);

  size_t count() const { return count_; }
  // "\"a\"", "\"a\", \"b\"", "\"a\", \"b\", \"c\", \"d\" and 3 more".
  std::string Text() const;

 private:
  std::vector<std::string> first_;  // in quotation marks
  size_t count_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_NAME_LIST_H_
