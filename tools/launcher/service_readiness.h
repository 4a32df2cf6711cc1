// Whether the services of a launched job can be used yet.
#ifndef OPTSHARD_TOOLS_LAUNCHER_SERVICE_READINESS_H_
#define OPTSHARD_TOOLS_LAUNCHER_SERVICE_READINESS_H_

#include <string>

#include "absl/time/time.h"
#include "tools/launcher/launch_plan.h"
#include "tools/launcher/process_commands.h"

namespace optshard {

// Looks at the port files that services write, and for the coordinator of another node at its port.
// Thread-compatible.
class ServiceReadiness {
 public:
  // Both must live as long.
  ServiceReadiness(const LaunchPlan* plan, LaunchPlaces* places) : plan_(plan), places_(places) {}

  // Sets the coordinator's address of the places once it can be used. Another node's is tried a few
  // times a second only.
  bool Coordinator(absl::Time now);
  bool Server() const;

  // What was not done so far: "did not write its port to ...".
  std::string CoordinatorLacks() const;
  std::string ServerLacks() const;

  // The gRPC port of the shard server, once it is ready; empty where its file cannot be read.
  std::string InspectionPort() const;

 private:
  const LaunchPlan* const plan_;
  LaunchPlaces* const places_;
  absl::Time next_try_ = absl::InfinitePast();
  std::string unreached_;  // why the last try failed
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_SERVICE_READINESS_H_
