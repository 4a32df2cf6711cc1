// A launched rank's connection to the process that launched it.
#ifndef OPTSHARD_EXAMPLES_RANK_LINK_H_
#define OPTSHARD_EXAMPLES_RANK_LINK_H_

#include <string>

namespace optshard {

// Where the rank was not launched (started by hand or by torchrun), Report does nothing and
// WaitForRelease returns at once. Thread-compatible.
class RankLink {
 public:
  // The exit code by which a launched rank asks for a successor.
  static constexpr int kReplaceMe = 75;

  explicit RankLink(bool launched) : launched_(launched) {}

  bool launched() const { return launched_; }

  // One line of text, for RankLauncher::WaitForReports.
  void Report(const std::string& line);

  // Returns when the launcher lets the ranks end (RankLauncher::Finish) or is gone.
  void WaitForRelease();

 private:
  const bool launched_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_LINK_H_
