#include "tests/testing/fake_file_system.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/fatal.h"
#include "server/checkpoint/file_errors.h"
#include "tests/testing/fake_disk_node.h"

namespace optshard::testing {
namespace {

constexpr int64_t kNone = -1;

}  // namespace

class FakeFileSystem::Disk {
 public:
  Disk() : root_(std::make_shared<Node>()) { root_->is_directory = true; }

  // --- Of handles. `life` is that of the disk in which the handle was opened.

  absl::StatusOr<NodePointer> Walk(const std::string& path) {
    absl::MutexLock lock(&mutex_);
    NodePointer node = root_;
    for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      const auto found = node->entries.find(std::string(name));
      if (found == node->entries.end()) return FileError("open directory", path, ENOENT);
      node = found->second;
    }
    if (!node->is_directory) return FileError("open directory", path, ENOTDIR);
    return node;
  }

  // Runs one operation, unless a fault comes first. `failing` runs instead of it where it fails.
  template <typename Result>
  Result Run(int life, const std::function<Result()>& operation,
             const std::function<void()>& failing = nullptr) {
    if (hook_) hook_();
    absl::MutexLock lock(&mutex_);
    if (crashed_ || life != life_) return Crashed();
    const int64_t number = operations_++;
    if (number == crash_at_) {
      crashed_ = true;
      const Result ignored = operation();
      (void)ignored;
      return Crashed();
    }
    if (number == fail_at_) {
      if (fail_done_) {
        const Result ignored = operation();
        (void)ignored;
      } else if (failing) {
        failing();
      }
      return error_;
    }
    return operation();
  }

  // Within an operation, which holds the lock: whether the power fails before it has reached the
  // device, and how much room there is.
  bool CrashesNow() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return crashed_; }
  int64_t Free() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return capacity_ - BytesOf(*root_); }
  absl::Time Now() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return now_; }
  // Files are opened within operations, and closed anywhere.
  void CountOpened() { most_open_files_ = std::max<int>(most_open_files_, ++open_files_); }
  void CountClosed() { --open_files_; }

  int life() const {
    absl::MutexLock lock(&mutex_);
    return life_;
  }

  // --- Of the test.

  void SetHook(std::function<void()> hook) { hook_ = std::move(hook); }
  void SetTime(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    now_ = now;
  }
  int most_open_files() const { return most_open_files_; }
  void FailAt(int64_t number, absl::Status error, bool done) {
    absl::MutexLock lock(&mutex_);
    fail_at_ = number;
    fail_done_ = done;
    error_ = std::move(error);
  }
  void CrashAt(int64_t number) {
    absl::MutexLock lock(&mutex_);
    crash_at_ = number;
  }
  void SetCapacity(int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    capacity_ = bytes;
  }
  int64_t operations() const {
    absl::MutexLock lock(&mutex_);
    return operations_;
  }
  bool crashed() const {
    absl::MutexLock lock(&mutex_);
    return crashed_;
  }
  void Restart(Unsynced unsynced, uint64_t seed) {
    absl::MutexLock lock(&mutex_);
    Chance chance(unsynced, seed);
    testing::Restart(*root_, chance);
    ++life_;
    crashed_ = false;
    crash_at_ = fail_at_ = kNone;
    capacity_ = kUnlimited;
  }
  void Edit(const std::string& path, const std::function<void(std::string&)>& edit) {
    absl::MutexLock lock(&mutex_);
    NodePointer node = root_;
    for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      const auto found = node->entries.find(std::string(name));
      if (found == node->entries.end()) Fatal("there is no %s to edit", path);
      node = found->second;
    }
    edit(node->content);
    node->kept_content = node->content;
    node->writes.clear();
  }

 private:
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  static absl::Status Crashed() { return absl::UnavailableError("the power has failed"); }

  std::function<void()> hook_;  // set while nobody uses the disk
  mutable absl::Mutex mutex_;
  const NodePointer root_;  // what it holds is guarded likewise
  int life_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  bool crashed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t crash_at_ ABSL_GUARDED_BY(mutex_) = kNone;
  int64_t fail_at_ ABSL_GUARDED_BY(mutex_) = kNone;
  bool fail_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  int64_t capacity_ ABSL_GUARDED_BY(mutex_) = kUnlimited;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  std::atomic<int> open_files_{0};
  std::atomic<int> most_open_files_{0};
};

class FakeFileSystem::OpenFileHandle final : public File {
 public:
  OpenFileHandle(std::shared_ptr<Disk> disk, int life, NodePointer node, std::string path,
                 bool writable)
      : disk_(std::move(disk)),
        life_(life),
        node_(std::move(node)),
        path_(std::move(path)),
        writable_(writable) {
    disk_->CountOpened();
  }
  ~OpenFileHandle() override { disk_->CountClosed(); }

  absl::Status WriteAt(int64_t offset_bytes, absl::Span<const absl::string_view> pieces) override {
    std::string bytes;
    for (const absl::string_view piece : pieces) bytes.append(piece.data(), piece.size());
    if (!writable_) return FileError("write", path_, EBADF);
    return disk_->Run<absl::Status>(
        life_, [&] { return Write(offset_bytes, bytes); },
        [&] { Write(offset_bytes, bytes.substr(0, bytes.size() / 2)).IgnoreError(); });
  }

  absl::StatusOr<size_t> ReadAt(int64_t offset_bytes, absl::Span<char> to) override {
    return disk_->Run<absl::StatusOr<size_t>>(life_, [&]() -> absl::StatusOr<size_t> {
      const std::string& content = node_->content;
      if (offset_bytes < 0) return FileError("read", path_, EINVAL);
      const size_t begin = std::min(static_cast<size_t>(offset_bytes), content.size());
      const size_t bytes = std::min(to.size(), content.size() - begin);
      std::copy_n(content.data() + begin, bytes, to.data());
      return bytes;
    });
  }

  absl::StatusOr<int64_t> Size() override {
    return disk_->Run<absl::StatusOr<int64_t>>(
        life_, [&] { return static_cast<int64_t>(node_->content.size()); });
  }

  absl::Status Sync() override {
    return disk_->Run<absl::Status>(
        life_,
        [&] {
          if (disk_->CrashesNow()) return absl::OkStatus();
          for (const auto& write : node_->writes) Apply(write, node_->kept_content);
          node_->writes.clear();
          return absl::OkStatus();
        },
        [&] { node_->writes.clear(); });
  }

  const std::string& path() const override { return path_; }

 private:
  absl::Status Write(int64_t offset, std::string bytes) {
    if (offset < 0) return FileError("write", path_, EINVAL);
    const int64_t end = offset + static_cast<int64_t>(bytes.size());
    const int64_t grows = std::max<int64_t>(0, end - static_cast<int64_t>(node_->content.size()));
    const int64_t too_much = std::max<int64_t>(0, grows - std::max<int64_t>(0, disk_->Free()));
    bytes.resize(bytes.size() - std::min(bytes.size(), static_cast<size_t>(too_much)));
    if (!bytes.empty()) {
      node_->writes.push_back({offset, std::move(bytes)});
      Apply(node_->writes.back(), node_->content);
      node_->modified_at = disk_->Now();
    }
    return too_much == 0 ? absl::OkStatus() : FileError("write", path_, ENOSPC);
  }

  const std::shared_ptr<Disk> disk_;
  const int life_;
  const NodePointer node_;
  const std::string path_;
  const bool writable_;
};

class FakeFileSystem::OpenDirectoryHandle final : public Directory {
 public:
  OpenDirectoryHandle(std::shared_ptr<Disk> disk, int life, NodePointer node, std::string path)
      : disk_(std::move(disk)), life_(life), node_(std::move(node)), path_(std::move(path)) {}

  absl::StatusOr<std::unique_ptr<File>> CreateFile(absl::string_view name) override {
    return Run<absl::StatusOr<std::unique_ptr<File>>>(name, [&] { return Create(name); });
  }

  absl::StatusOr<std::unique_ptr<File>> OpenFile(absl::string_view name) override {
    return Open(name, /*writable=*/false);
  }

  absl::StatusOr<std::unique_ptr<File>> OpenFileToWrite(absl::string_view name) override {
    return Open(name, /*writable=*/true);
  }

  absl::Status CreateDirectory(absl::string_view name) override {
    return Run<absl::Status>(name, [&] {
      if (Find(name) != nullptr) {
        return FileError("create directory", PathOf(path_, name), EEXIST);
      }
      auto node = std::make_shared<Node>();
      node->is_directory = true;
      node->modified_at = disk_->Now();
      Change({"", std::string(name), std::move(node)});
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::unique_ptr<Directory>> OpenDirectory(absl::string_view name) override {
    using Result = absl::StatusOr<std::unique_ptr<Directory>>;
    return Run<Result>(name, [&]() -> Result {
      const NodePointer node = Find(name);
      if (node == nullptr) return FileError("open directory", PathOf(path_, name), ENOENT);
      if (!node->is_directory) return FileError("open directory", PathOf(path_, name), ENOTDIR);
      return std::unique_ptr<Directory>(
          new OpenDirectoryHandle(disk_, life_, node, PathOf(path_, name)));
    });
  }

  absl::Status Rename(absl::string_view from, absl::string_view to) override {
    return RenameTo(from, to, /*replaces=*/true);
  }

  absl::Status RenameNew(absl::string_view from, absl::string_view to) override {
    return RenameTo(from, to, /*replaces=*/false);
  }

  absl::Status Remove(absl::string_view name) override {
    return Run<absl::Status>(name, [&] {
      const NodePointer node = Find(name);
      if (node == nullptr) return FileError("remove", PathOf(path_, name), ENOENT);
      if (!node->entries.empty()) return FileError("remove", PathOf(path_, name), ENOTEMPTY);
      Change({std::string(name), "", nullptr});
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::vector<DirectoryEntry>> List() override {
    using Result = absl::StatusOr<std::vector<DirectoryEntry>>;
    return disk_->Run<Result>(life_, [&]() -> Result {
      std::vector<DirectoryEntry> entries;
      for (const auto& [name, node] : node_->entries) {
        entries.push_back({name, node->is_directory ? EntryKind::kDirectory : EntryKind::kFile,
                           static_cast<int64_t>(node->content.size()), node->modified_at});
      }
      return entries;
    });
  }

  absl::Status Sync() override {
    return disk_->Run<absl::Status>(
        life_,
        [&] {
          if (disk_->CrashesNow()) return absl::OkStatus();
          for (const EntryChange& change : node_->changes) Apply(change, node_->kept_entries);
          node_->changes.clear();
          return absl::OkStatus();
        },
        [&] { node_->changes.clear(); });
  }

  absl::StatusOr<int64_t> FreeBytes() override {
    return disk_->Run<absl::StatusOr<int64_t>>(life_, [&] { return disk_->Free(); });
  }

  const std::string& path() const override { return path_; }

 private:
  template <typename Result>
  Result Run(absl::string_view name, const std::function<Result()>& operation) {
    absl::Status checked = CheckEntryName(path_, name);
    if (!checked.ok()) return checked;
    return disk_->Run<Result>(life_, operation);
  }

  absl::StatusOr<std::unique_ptr<File>> Open(absl::string_view name, bool writable) {
    using Result = absl::StatusOr<std::unique_ptr<File>>;
    return Run<Result>(name, [&]() -> Result {
      const NodePointer node = Find(name);
      if (node == nullptr) return FileError("open", PathOf(path_, name), ENOENT);
      if (node->is_directory) return FileError("open", PathOf(path_, name), EISDIR);
      return FileOf(node, name, writable);
    });
  }

  absl::Status RenameTo(absl::string_view from, absl::string_view to, bool replaces) {
    absl::Status checked = CheckEntryName(path_, to);
    if (!checked.ok()) return checked;
    return Run<absl::Status>(from, [&] {
      const NodePointer node = Find(from);
      const NodePointer replaced = Find(to);
      if (node == nullptr) return FileError("rename", PathOf(path_, from), ENOENT);
      if (replaced != nullptr && !replaces) return FileError("rename", PathOf(path_, from), EEXIST);
      if (replaced != nullptr && replaced->is_directory && !node->is_directory) {
        return FileError("rename", PathOf(path_, from), EISDIR);
      }
      if (replaced != nullptr && !replaced->is_directory && node->is_directory) {
        return FileError("rename", PathOf(path_, from), ENOTDIR);
      }
      if (replaced != nullptr && !replaced->entries.empty()) {
        return FileError("rename", PathOf(path_, from), ENOTEMPTY);
      }
      Change({std::string(from), std::string(to), node});
      return absl::OkStatus();
    });
  }

  NodePointer Find(absl::string_view name) const {
    const auto found = node_->entries.find(std::string(name));
    return found == node_->entries.end() ? nullptr : found->second;
  }

  void Change(EntryChange change) {
    node_->modified_at = disk_->Now();
    Apply(change, node_->entries);
    node_->changes.push_back(std::move(change));
  }

  absl::StatusOr<std::unique_ptr<File>> Create(absl::string_view name) {
    if (Find(name) != nullptr) return FileError("create", PathOf(path_, name), EEXIST);
    auto node = std::make_shared<Node>();
    node->modified_at = disk_->Now();
    Change({"", std::string(name), node});
    return FileOf(std::move(node), name, /*writable=*/true);
  }

  std::unique_ptr<File> FileOf(NodePointer node, absl::string_view name, bool writable) const {
    return std::make_unique<OpenFileHandle>(disk_, life_, std::move(node), PathOf(path_, name),
                                            writable);
  }

  const std::shared_ptr<Disk> disk_;
  const int life_;
  const NodePointer node_;
  const std::string path_;
};

FakeFileSystem::FakeFileSystem() : disk_(std::make_shared<Disk>()) {}
FakeFileSystem::~FakeFileSystem() = default;

absl::StatusOr<std::unique_ptr<Directory>> FakeFileSystem::OpenDirectory(const std::string& path) {
  absl::StatusOr<NodePointer> node = disk_->Walk(path);
  if (!node.ok()) return node.status();
  return std::unique_ptr<Directory>(
      new OpenDirectoryHandle(disk_, disk_->life(), *std::move(node), path));
}

void FakeFileSystem::FailOperation(int64_t number, absl::Status error) {
  disk_->FailAt(number, std::move(error), /*done=*/false);
}
void FakeFileSystem::FailDoneOperation(int64_t number, absl::Status error) {
  disk_->FailAt(number, std::move(error), /*done=*/true);
}
void FakeFileSystem::BeforeOperations(std::function<void()> hook) {
  disk_->SetHook(std::move(hook));
}
void FakeFileSystem::SetTime(absl::Time now) { disk_->SetTime(now); }
int FakeFileSystem::most_open_files() const { return disk_->most_open_files(); }
void FakeFileSystem::CrashAtOperation(int64_t number) { disk_->CrashAt(number); }
void FakeFileSystem::SetCapacity(int64_t bytes) { disk_->SetCapacity(bytes); }
int64_t FakeFileSystem::operations() const { return disk_->operations(); }
bool FakeFileSystem::crashed() const { return disk_->crashed(); }
void FakeFileSystem::Restart(Unsynced unsynced, uint64_t seed) { disk_->Restart(unsynced, seed); }
void FakeFileSystem::Edit(const std::string& path, const std::function<void(std::string&)>& edit) {
  disk_->Edit(path, edit);
}

}  // namespace optshard::testing
