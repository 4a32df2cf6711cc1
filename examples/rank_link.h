// A launched rank's connection to the process that launched it.
#ifndef OPTSHARD_EXAMPLES_RANK_LINK_H_
#define OPTSHARD_EXAMPLES_RANK_LINK_H_

#include <string>

namespace optshard {

// A rank that was started by hand or by torchrun has no launcher: Report then does nothing, and
// WaitForRelease returns at once. Thread-compatible.
class RankLink {
 public:
  // The exit code with which a launched rank asks to be replaced by a new process.
  static constexpr int kReplaceMe = 75;

  explicit RankLink(bool launched) : launched_(launched) {}

  bool launched() const { return launched_; }

  // Sends one line of text to RankLauncher::WaitForReports. Does nothing where the launcher is
  // gone.
  void Report(const std::string& line);

  // Waits until the launcher calls RankLauncher::Finish or is gone.
  void WaitForRelease();

 private:
  const bool launched_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_LINK_H_
