// The option parameters_as_bucket_view: whether a trainer's tensors become views of flat memory.
#ifndef OPTSHARD_CLIENT_BUCKET_VIEW_H_
#define OPTSHARD_CLIENT_BUCKET_VIEW_H_

#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Three values, of which a bool gives two: `options.parameters_as_bucket_view = true` means kOn.
class BucketView {
 public:
  enum Choice {
    kAutomatic,  // views, unless a parameter has something that they would break
    kOn,         // views
    kOff,        // every tensor stays where it is
  };

  constexpr BucketView(Choice choice = kAutomatic)  // NOLINT(google-explicit-constructor)
      : choice_(choice) {}
  // Of a bool only: a pointer or a number is a mistake.
  template <typename Bool, std::enable_if_t<std::is_same_v<Bool, bool>, int> = 0>
  constexpr BucketView(Bool on)  // NOLINT(google-explicit-constructor)
      : choice_(on ? kOn : kOff) {}

  constexpr Choice choice() const { return choice_; }
  friend constexpr bool operator==(BucketView a, BucketView b) { return a.choice_ == b.choice_; }
  friend constexpr bool operator!=(BucketView a, BucketView b) { return !(a == b); }

 private:
  Choice choice_;
};

absl::string_view NameOf(BucketView view);  // "auto", "on", "off"
// INVALID_ARGUMENT, listing the known names, for any other text.
absl::StatusOr<BucketView> ParseBucketView(absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_BUCKET_VIEW_H_
