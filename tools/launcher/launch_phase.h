// The states of a launched job on one node, and how it goes from one to the next:
//
//   phase              ready         gone             failure       interrupt     deadline
//   start coordinator  start server  -                end trainers  end trainers  end trainers
//   start server       train         -                end trainers  end trainers  end trainers
//   train              -             end server       end trainers  end trainers  -
//   end trainers       -             end server       -             kill          kill
//   end server         -             end coordinator  -             kill          kill
//   end coordinator    -             kill             -             kill          kill
//   kill               -             over             -             -             over
//   over               -             -                -             -             -
//
// docs/deploy/launcher.md shows this table to users.
#ifndef OPTSHARD_TOOLS_LAUNCHER_LAUNCH_PHASE_H_
#define OPTSHARD_TOOLS_LAUNCHER_LAUNCH_PHASE_H_

namespace optshard {

enum class LaunchPhase {
  kStartCoordinator,  // or, on other nodes than its own, wait until it can be reached
  kStartServer,
  kTrain,
  kEndTrainers,
  kEndServer,
  kEndCoordinator,
  kKill,  // whatever is left, also what the trainers have started and left behind
  kOver,
};

enum class LaunchEvent {
  kReady,      // the service that the phase starts can be used, or this node has none
  kGone,       // all processes have ended that the phase waits for
  kFailure,    // of a process that is not replaced
  kInterrupt,  // by a signal to the launcher
  kDeadline,   // of the phase
};

// A pair that the table does not have leaves the phase as it is.
LaunchPhase NextPhase(LaunchPhase phase, LaunchEvent event);

// As in the table: "end trainers".
const char* NameOf(LaunchPhase phase);
const char* NameOf(LaunchEvent event);

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_LAUNCH_PHASE_H_
