// What the launcher writes to its stdout and stderr, without ever waiting for a reader.
#ifndef OPTSHARD_TOOLS_LAUNCHER_OUTPUT_QUEUE_H_
#define OPTSHARD_TOOLS_LAUNCHER_OUTPUT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <set>
#include <string>

namespace optshard {

// Texts are written in the order in which they are added, each of them whole before the next one
// begins, so that lines stay whole where both descriptors lead to one terminal. Thread-compatible.
class OutputQueue {
 public:
  explicit OutputQueue(size_t room = 1 << 20) : room_(room) {}

  void Add(int descriptor, std::string text);

  // Writes as much as can be written at once. Where the reader is gone (EPIPE) or cannot take
  // anything any more, what is for that descriptor is dropped, now and later: a job goes on without
  // whom it was shown to.
  void Flush();

  bool empty() const { return texts_.empty(); }
  // Nothing should be added before some of it is written.
  bool full() const { return bytes_ >= room_; }
  // The descriptor that can be written to before more is flushed; -1 where nothing waits.
  int descriptor() const { return texts_.empty() ? -1 : texts_.front().descriptor; }

 private:
  struct Text {
    int descriptor;
    std::string bytes;
  };

  void Written(size_t count);

  const size_t room_;
  std::deque<Text> texts_;
  size_t first_ = 0;  // bytes of the first text that are written
  size_t bytes_ = 0;  // of all texts
  std::set<int> closed_;
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_OUTPUT_QUEUE_H_
