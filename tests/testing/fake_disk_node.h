// What a fake disk has: files and directories as programs see them, what a crash leaves of them in
// any case, and how the one became the other.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_DISK_NODE_H_
#define OPTSHARD_TESTS_TESTING_FAKE_DISK_NODE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/fake_file_system.h"

namespace optshard::testing {

struct Node;
using NodePointer = std::shared_ptr<Node>;
using Entries = std::map<std::string, NodePointer>;

// Not synced yet.
struct Write {
  int64_t offset;
  std::string bytes;
};

// A change of names that is there whole or not at all.
struct EntryChange {
  std::string gone;  // "": none
  std::string name;  // "": none
  NodePointer node;
};

struct Node {
  bool is_directory = false;
  absl::Time modified_at = absl::UnixEpoch();
  std::string content;
  std::string kept_content;
  std::vector<Write> writes;
  Entries entries;
  Entries kept_entries;
  std::vector<EntryChange> changes;
};

inline void Apply(const Write& write, std::string& content) {
  const size_t end = static_cast<size_t>(write.offset) + write.bytes.size();
  if (content.size() < end) content.resize(end);
  content.replace(static_cast<size_t>(write.offset), write.bytes.size(), write.bytes);
}

inline void Apply(const EntryChange& change, Entries& entries) {
  if (!change.gone.empty()) entries.erase(change.gone);
  if (!change.name.empty()) entries[change.name] = change.node;
}

inline int64_t BytesOf(const Node& node) {
  int64_t bytes = static_cast<int64_t>(node.content.size());
  for (const auto& [name, child] : node.entries) bytes += BytesOf(*child);
  return bytes;
}

// Chooses what a crash leaves.
class Chance {
 public:
  Chance(FakeFileSystem::Unsynced unsynced, uint64_t seed) : unsynced_(unsynced), random_(seed) {}

  bool Kept() {
    return unsynced_ == FakeFileSystem::Unsynced::kKept ||
           (unsynced_ == FakeFileSystem::Unsynced::kByChance && Below(2) == 0);
  }
  // How many bytes of a write are there.
  size_t KeptOf(size_t bytes) {
    if (unsynced_ != FakeFileSystem::Unsynced::kByChance) return Kept() ? bytes : 0;
    return Below(3) == 0 ? Below(bytes + 1) : Kept() ? bytes : 0;
  }

 private:
  uint64_t Below(uint64_t limit) {
    return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_);
  }

  const FakeFileSystem::Unsynced unsynced_;
  std::mt19937_64 random_;
};

inline void Restart(Node& node, Chance& chance) {
  for (Write& write : node.writes) {
    write.bytes.resize(chance.KeptOf(write.bytes.size()));
    if (!write.bytes.empty()) Apply(write, node.kept_content);
  }
  for (const EntryChange& change : node.changes) {
    if (chance.Kept()) Apply(change, node.kept_entries);
  }
  node.writes.clear();
  node.changes.clear();
  node.content = node.kept_content;
  node.entries = node.kept_entries;
  for (const auto& [name, child] : node.entries) Restart(*child, chance);
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_DISK_NODE_H_
