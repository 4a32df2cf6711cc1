#include "common/name_list.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

constexpr size_t kNamed = 4;

}  // namespace

void NameList::Add(absl::string_view name) {
  if (count_++ < kNamed) first_.push_back(absl::StrCat("\"", name, "\""));
}

std::string NameList::Text() const {
  std::string text = absl::StrJoin(first_, ", ");
  if (count_ > first_.size()) absl::StrAppend(&text, " and ", count_ - first_.size(), " more");
  return text;
}

}  // namespace optshard
