#include "common/hyperparameter_bytes.h"

#include <limits>

#include "gtest/gtest.h"

namespace optshard {
namespace {

std::vector<Hyperparameters> Some() {
  std::vector<Hyperparameters> groups(3);
  groups[0].Set("lr", 0.1);
  groups[0].Set("betas", Numbers{0.9, 0.999});
  groups[0].Set("amsgrad", true);
  groups[2].Set("lr", std::numeric_limits<double>::infinity());
  groups[2].Set("maximize", false);
  groups[2].Set("coefficients", Numbers{1, -2, 3});
  groups[2].Set("mode", std::string("slow"));
  return groups;
}

TEST(HyperparameterBytes_ThereAndBack, AreTheSame) {
  EXPECT_EQ(*DecodeHyperparameters(EncodeHyperparameters(Some())), Some());
  EXPECT_TRUE(DecodeHyperparameters(EncodeHyperparameters({}))->empty());
}

TEST(HyperparameterBytes_CutAnywhere_NeverHarm, AndAreMostlyRefused) {
  const std::string bytes = EncodeHyperparameters(Some());
  size_t refused = 0;
  for (size_t kept = 0; kept < bytes.size(); ++kept) {
    const auto decoded = DecodeHyperparameters(bytes.substr(0, kept));
    // What ends with a group is one group less.
    EXPECT_TRUE(absl::IsInvalidArgument(decoded.status()) || decoded->size() < 3);
    refused += decoded.ok() ? 0 : 1;
  }
  EXPECT_GE(refused, bytes.size() - 3);
}

TEST(HyperparameterBytes_OfAnUnknownType_AreRefused, NamingTheGroup) {
  Hyperparameters group;
  group.Set("lr", 1.0);
  std::string bytes = EncodeHyperparameters({group, group});
  bytes[bytes.size() - 9] = 9;
  const absl::Status status = DecodeHyperparameters(bytes).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("group 1"), absl::string_view::npos) << status;
}

TEST(HyperparameterBytes_OfMoreNumbersThanThereAre, AreRefused) {
  Hyperparameters group;
  group.Set("betas", Numbers{1, 2});
  std::string bytes = EncodeHyperparameters({group});
  bytes[bytes.size() - 17] = kMaxNumbers + 1;
  bytes.append(3 * sizeof(double), '\0');
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeHyperparameters(bytes).status()));
}

}  // namespace
}  // namespace optshard
