#include "common/rpc/probe_server_rpc.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/health_probe.h"

namespace optshard {
namespace {

using testing::AwaitHealth;
using ::testing::HasSubstr;
using testing::Health;
using testing::ProbeHealth;

constexpr absl::Duration kPatience = absl::Seconds(30);

class ProbeServerTest : public ::testing::Test {
 protected:
  ProbeServerTest() {
    options_.listen = "127.0.0.1:0";
    options_.look = absl::Milliseconds(1);
    options_.clock = &clock_;
    auto started = ProbeServer::Start(options_);
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) probes_ = *std::move(started);
  }
  int port() const { return probes_->port(); }

  FakeClock clock_;
  ProbeServer::Options options_;
  std::unique_ptr<ProbeServer> probes_;
};

TEST_F(ProbeServerTest, AtFirst_IsAliveAndNotReady) {
  EXPECT_EQ(ProbeHealth(port(), "liveness"), Health::kServing);
  EXPECT_EQ(ProbeHealth(port(), "readiness"), Health::kNotServing);
  EXPECT_EQ(ProbeHealth(port(), "other"), Health::kUnknownService);
}

TEST_F(ProbeServerTest, Readiness_IsWhatItWasSetTo) {
  probes_->SetReady(true);
  EXPECT_EQ(ProbeHealth(port(), "readiness"), Health::kServing);
  EXPECT_EQ(ProbeHealth(port(), "liveness"), Health::kServing);
  probes_->SetReady(false);
  EXPECT_EQ(ProbeHealth(port(), "readiness"), Health::kNotServing);
}

TEST_F(ProbeServerTest, MainLoopThatHangs_IsNotAlive_UntilItComesAround) {
  clock_.Advance(options_.longest_silence + absl::Milliseconds(1));
  EXPECT_TRUE(AwaitHealth(port(), "liveness", Health::kNotServing, kPatience));
  probes_->Beat();
  EXPECT_TRUE(AwaitHealth(port(), "liveness", Health::kServing, kPatience));
  EXPECT_EQ(ProbeHealth(port(), "readiness"), Health::kNotServing);
}

TEST_F(ProbeServerTest, PortThatIsTaken_IsUnavailableNamingIt) {
  ProbeServer::Options second;
  second.listen = absl::StrCat("127.0.0.1:", port());
  const absl::Status refused = ProbeServer::Start(second).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(second.listen));
}

}  // namespace
}  // namespace optshard
