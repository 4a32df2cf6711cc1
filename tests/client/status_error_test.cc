#include "client/status_error.h"

#include <gtest/gtest.h>

#include <string>

#include "common/errors.h"

namespace optshard {
namespace {

TEST(StatusErrorTest, What_ErrorWithPayload_IsCodeAndMessageAndStatusKeepsThePayload) {
  const StatusError error(errors::PeerLost(3, "its lease ran out"));
  EXPECT_EQ(std::string(error.what()).find("UNAVAILABLE: "), 0u) << error.what();
  EXPECT_NE(std::string(error.what()).find("its lease ran out"), std::string::npos);
  EXPECT_TRUE(errors::IsPeerLost(error.status()));
  EXPECT_EQ(errors::RanksOf(error.status()), std::vector<Rank>{3});
}

TEST(StatusErrorTest, ValueOrThrow_Value_ReturnsIt) {
  EXPECT_EQ(ValueOrThrow(absl::StatusOr<int>(7)), 7);
}

TEST(StatusErrorTest, ValueOrThrow_Error_Throws) {
  EXPECT_THROW(ValueOrThrow(absl::StatusOr<int>(absl::NotFoundError("nothing there"))),
               StatusError);
}

TEST(StatusErrorTest, ThrowIfError_Ok_DoesNothing) { ThrowIfError(absl::OkStatus()); }

TEST(StatusErrorTest, SayingWhere_Error_HasThePlaceAndKeepsThePayload) {
  EXPECT_EQ(SayingWhere("rank", 1, [] { return 7; }), 7);
  try {
    SayingWhere("rank", 1, [] { ThrowIfError(errors::RanksDisagree({2}, "lr differs")); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().message().substr(0, 8), "rank 1: ");
    EXPECT_EQ(errors::RanksOf(error.status()), std::vector<Rank>{2});
  }
}

}  // namespace
}  // namespace optshard
