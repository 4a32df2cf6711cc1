#include "client/bucket_view.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace optshard {

absl::string_view NameOf(BucketView view) {
  switch (view.choice()) {
    case BucketView::kAutomatic:
      return "auto";
    case BucketView::kOn:
      return "on";
    case BucketView::kOff:
      return "off";
  }
  return "unknown";
}

absl::StatusOr<BucketView> ParseBucketView(absl::string_view name) {
  for (const BucketView view : {BucketView::kAutomatic, BucketView::kOn, BucketView::kOff}) {
    if (name == NameOf(view)) return view;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown value \"", name, "\" of bucket_view; known are auto, on, off"));
}

}  // namespace optshard
