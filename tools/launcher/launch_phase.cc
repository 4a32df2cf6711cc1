#include "tools/launcher/launch_phase.h"

namespace optshard {

LaunchPhase NextPhase(LaunchPhase phase, LaunchEvent event) {
  using Phase = LaunchPhase;
  using Event = LaunchEvent;
  const bool ready = event == Event::kReady;
  const bool gone = event == Event::kGone;
  switch (phase) {
    case Phase::kStartCoordinator:
      if (gone) return phase;
      return ready ? Phase::kStartServer : Phase::kEndTrainers;
    case Phase::kStartServer:
      if (gone) return phase;
      return ready ? Phase::kTrain : Phase::kEndTrainers;
    case Phase::kTrain:
      if (gone) return Phase::kEndServer;
      return event == Event::kFailure || event == Event::kInterrupt ? Phase::kEndTrainers : phase;
    case Phase::kEndTrainers:
      if (gone) return Phase::kEndServer;
      break;
    case Phase::kEndServer:
      if (gone) return Phase::kEndCoordinator;
      break;
    case Phase::kEndCoordinator:
      if (gone) return Phase::kKill;
      break;
    case Phase::kKill:
      return gone || event == Event::kDeadline ? Phase::kOver : phase;
    case Phase::kOver:
      return phase;
  }
  return event == Event::kInterrupt || event == Event::kDeadline ? Phase::kKill : phase;
}

const char* NameOf(LaunchPhase phase) {
  switch (phase) {
    case LaunchPhase::kStartCoordinator:
      return "start coordinator";
    case LaunchPhase::kStartServer:
      return "start server";
    case LaunchPhase::kTrain:
      return "train";
    case LaunchPhase::kEndTrainers:
      return "end trainers";
    case LaunchPhase::kEndServer:
      return "end server";
    case LaunchPhase::kEndCoordinator:
      return "end coordinator";
    case LaunchPhase::kKill:
      return "kill";
    case LaunchPhase::kOver:
      return "over";
  }
  return "unknown";
}

const char* NameOf(LaunchEvent event) {
  switch (event) {
    case LaunchEvent::kReady:
      return "ready";
    case LaunchEvent::kGone:
      return "gone";
    case LaunchEvent::kFailure:
      return "failure";
    case LaunchEvent::kInterrupt:
      return "interrupt";
    case LaunchEvent::kDeadline:
      return "deadline";
  }
  return "unknown";
}

}  // namespace optshard
