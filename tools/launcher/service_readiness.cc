#include "tools/launcher/service_readiness.h"

#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/launcher/host_port.h"

namespace optshard {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(300);

// Empty until the file is there, which is then whole.
std::string PortIn(const std::string& file) {
  std::string port;
  std::ifstream(file) >> port;
  return port;
}

}  // namespace

bool ServiceReadiness::Coordinator(absl::Time now) {
  if (plan_->has_coordinator()) {
    const std::string port = PortIn(places_->coordinator_port_file);
    if (port.empty()) return false;
    places_->coordinator =
        plan_->coordinator.empty() ? absl::StrCat("127.0.0.1:", port) : plan_->coordinator;
    return true;
  }
  places_->coordinator = plan_->coordinator;
  if (now < next_try_) return false;
  next_try_ = now + kBetweenTries;
  const absl::StatusOr<HostPort> address = ParseHostPort(plan_->coordinator);
  const absl::Status reached = address.ok() ? TryToReach(*address) : address.status();
  unreached_ = std::string(reached.message());
  return reached.ok();
}

bool ServiceReadiness::Server() const { return !PortIn(places_->server_port_file).empty(); }

std::string ServiceReadiness::CoordinatorLacks() const {
  if (plan_->has_coordinator()) {
    return absl::StrCat("did not write its port to ", places_->coordinator_port_file);
  }
  return absl::StrCat("was not reached at ", plan_->coordinator, " (", unreached_,
                      "; does optshard-run run on node 0, with the same --coordinator?)");
}

std::string ServiceReadiness::ServerLacks() const {
  return absl::StrCat("does not listen at ", places_->socket);
}

std::string ServiceReadiness::InspectionPort() const { return PortIn(places_->server_port_file); }

}  // namespace optshard
