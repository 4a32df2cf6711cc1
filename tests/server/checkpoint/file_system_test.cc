// One suite for every FileSystem, then what only one of them can show.
#include "server/checkpoint/file_system.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/file_errors.h"
#include "server/checkpoint/posix_file_system.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::FakeFileSystem;
using ::testing::HasSubstr;

std::string NewDirectory() {
  std::string path = absl::StrCat(::testing::TempDir(), "/file_system.XXXXXX");
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

absl::Status WriteFile(Directory& directory, absl::string_view name, absl::string_view text) {
  auto file = directory.CreateFile(name);
  return file.ok() ? (*file)->WriteAt(0, {text}) : file.status();
}

std::string ReadFile(Directory& directory, absl::string_view name) {
  auto file = directory.OpenFile(name);
  if (!file.ok()) return file.status().ToString();
  std::string text(1000, '?');
  const auto bytes = (*file)->ReadAt(0, absl::MakeSpan(text));
  return bytes.ok() ? text.substr(0, *bytes) : bytes.status().ToString();
}

struct Made {
  std::unique_ptr<FileSystem> system;
  std::string root;
};
struct Kind {
  std::string name;
  std::function<Made()> make;
};

class FileSystemSuite : public ::testing::TestWithParam<Kind> {
 protected:
  FileSystemSuite()
      : made_(GetParam().make()), root_(made_.system->OpenDirectory(made_.root).value()) {}

  const Made made_;
  const std::unique_ptr<Directory> root_;
};

TEST_P(FileSystemSuite, File_WrittenInPieces_IsReadBack) {
  auto file = root_->CreateFile("a").value();
  ASSERT_EQ(file->WriteAt(0, {"one", "", "two"}), absl::OkStatus());
  ASSERT_EQ(file->WriteAt(8, {"nine"}), absl::OkStatus());
  ASSERT_EQ(file->WriteAt(1, {"N"}), absl::OkStatus());
  ASSERT_EQ(file->WriteAt(3, {}), absl::OkStatus());
  EXPECT_EQ(file->Sync(), absl::OkStatus());
  EXPECT_EQ(file->Size().value(), 12);
  EXPECT_EQ(ReadFile(*root_, "a"), std::string("oNetwo\0\0nine", 12));
  std::string some(5, '?');
  EXPECT_EQ(file->ReadAt(10, absl::MakeSpan(some)).value(), 2u);
  EXPECT_EQ(file->ReadAt(50, absl::MakeSpan(some)).value(), 0u);
}

TEST_P(FileSystemSuite, File_WrittenInMorePiecesThanACallTakes_IsReadBack) {
  std::vector<std::string> texts;
  std::string whole;
  for (int i = 0; i < 700; ++i) whole += texts.emplace_back(absl::StrCat(i % 3 == 0 ? "" : "x", i));
  const std::vector<absl::string_view> pieces(texts.begin(), texts.end());
  auto file = root_->CreateFile("a").value();
  ASSERT_EQ(file->WriteAt(2, pieces), absl::OkStatus());
  std::string back(whole.size() + 9, '?');
  ASSERT_EQ(file->ReadAt(2, absl::MakeSpan(back)).value(), whole.size());
  EXPECT_EQ(back.substr(0, whole.size()), whole);
}

TEST_P(FileSystemSuite, Names_ThatExist_AreRefusedOrReplaced) {
  ASSERT_EQ(WriteFile(*root_, "a", "A"), absl::OkStatus());
  EXPECT_EQ(root_->CreateFile("a").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(root_->CreateDirectory("a").code(), absl::StatusCode::kAlreadyExists);
  ASSERT_EQ(WriteFile(*root_, "b", "B"), absl::OkStatus());
  ASSERT_EQ(root_->Rename("a", "b"), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root_, "b"), "A");
  EXPECT_EQ(root_->OpenFile("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(root_->Rename("a", "b").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(root_->Remove("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(root_->OpenDirectory("a").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(FileSystemSuite, OpenFileToWrite_LetsSeveralWriteIntoOneFile) {
  EXPECT_EQ(root_->OpenFileToWrite("a").status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(WriteFile(*root_, "a", "......"), absl::OkStatus());
  const auto one = root_->OpenFileToWrite("a").value();
  const auto other = root_->OpenFileToWrite("a").value();
  ASSERT_EQ(one->WriteAt(1, {"1"}), absl::OkStatus());
  ASSERT_EQ(other->WriteAt(4, {"2"}), absl::OkStatus());
  EXPECT_EQ(one->Sync(), absl::OkStatus());
  EXPECT_EQ(other->Sync(), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root_, "a"), ".1..2.");
  ASSERT_EQ(root_->CreateDirectory("d"), absl::OkStatus());
  EXPECT_EQ(root_->OpenFileToWrite("d").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(FileSystemSuite, ADirectoryThatIsRenamed_ReplacesAnEmptyOneAlone) {
  ASSERT_EQ(root_->CreateDirectory("from"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root_->OpenDirectory("from").value(), "a", "A"), absl::OkStatus());
  ASSERT_EQ(root_->CreateDirectory("empty"), absl::OkStatus());
  ASSERT_EQ(root_->CreateDirectory("full"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root_->OpenDirectory("full").value(), "b", "B"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root_, "file", "F"), absl::OkStatus());
  EXPECT_EQ(root_->Rename("from", "full").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(root_->Rename("from", "file").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(root_->Rename("from", "empty"), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root_->OpenDirectory("empty").value(), "a"), "A");
  EXPECT_EQ(ReadFile(*root_->OpenDirectory("full").value(), "b"), "B");
  EXPECT_EQ(root_->OpenDirectory("from").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(FileSystemSuite, RenameNew_NeverReplaces) {
  ASSERT_EQ(WriteFile(*root_, "a", "A"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root_, "b", "B"), absl::OkStatus());
  EXPECT_EQ(root_->RenameNew("a", "b").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(*root_, "a"), "A");
  EXPECT_EQ(ReadFile(*root_, "b"), "B");
  ASSERT_EQ(root_->RenameNew("a", "c"), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root_, "c"), "A");
  EXPECT_EQ(root_->List().value().size(), 2u);
  EXPECT_EQ(root_->RenameNew("a", "d").code(), absl::StatusCode::kNotFound);
}

TEST_P(FileSystemSuite, List_HasSizesAndTimes) {
  ASSERT_EQ(WriteFile(*root_, "a", "four"), absl::OkStatus());
  ASSERT_EQ(root_->CreateDirectory("d"), absl::OkStatus());
  const auto entries = root_->List().value();
  EXPECT_EQ(entries[0].bytes, 4);
  EXPECT_EQ(entries[1].bytes, 0);
  EXPECT_GT(entries[0].modified_at, absl::InfinitePast());
  EXPECT_GE(entries[1].modified_at, entries[0].modified_at);
}

TEST_P(FileSystemSuite, Directories_AreMadeListedAndRemoved) {
  ASSERT_EQ(root_->CreateDirectory("d"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root_, "c", ""), absl::OkStatus());
  auto inner = root_->OpenDirectory("d").value();
  ASSERT_EQ(WriteFile(*inner, "x", "X"), absl::OkStatus());
  EXPECT_EQ(inner->Sync(), absl::OkStatus());
  EXPECT_EQ(root_->Sync(), absl::OkStatus());
  EXPECT_THAT(inner->path(), ::testing::EndsWith("/d"));

  for (int again = 0; again < 2; ++again) {
    const std::vector<DirectoryEntry> entries = root_->List().value();
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].name, "c");
    EXPECT_EQ(entries[0].kind, EntryKind::kFile);
    EXPECT_EQ(entries[1].name, "d");
    EXPECT_EQ(entries[1].kind, EntryKind::kDirectory);
  }
  EXPECT_EQ(root_->Remove("d").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(root_->OpenDirectory("c").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(root_->OpenFile("d").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(inner->Remove("x"), absl::OkStatus());
  ASSERT_EQ(root_->Remove("d"), absl::OkStatus());
  EXPECT_EQ(root_->List().value().size(), 1u);
  EXPECT_GT(root_->FreeBytes().value(), 0);
}

TEST_P(FileSystemSuite, Names_ThatLeadElsewhere_AreRefused) {
  const std::string nul("a\0b", 3);
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("/a"),
        std::string("../a"), nul, std::string(256, 'a')}) {
    SCOPED_TRACE(name);
    const absl::StatusCode expected = absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(root_->CreateFile(name).status().code(), expected);
    EXPECT_EQ(root_->OpenFile(name).status().code(), expected);
    EXPECT_EQ(root_->CreateDirectory(name).code(), expected);
    EXPECT_EQ(root_->OpenDirectory(name).status().code(), expected);
    EXPECT_EQ(root_->Rename(name, "b").code(), expected);
    EXPECT_EQ(root_->Rename("b", name).code(), expected);
    EXPECT_EQ(root_->RenameNew(name, "b").code(), expected);
    EXPECT_EQ(root_->RenameNew("b", name).code(), expected);
    EXPECT_EQ(root_->Remove(name).code(), expected);
  }
  EXPECT_EQ(root_->CreateFile(std::string(255, 'a')).status(), absl::OkStatus());
}

TEST_P(FileSystemSuite, Errors_SayOperationPathAndCause) {
  EXPECT_THAT(
      std::string(root_->OpenFile("none").status().message()),
      AllOf(HasSubstr("cannot open "), HasSubstr("/none: No such file"), HasSubstr("(errno 2)")));
  EXPECT_EQ(made_.system->OpenDirectory(absl::StrCat(made_.root, "/none")).status().code(),
            absl::StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(
    All, FileSystemSuite,
    ::testing::Values(Kind{"Posix",
                           [] {
                             return Made{std::make_unique<PosixFileSystem>(), NewDirectory()};
                           }},
                      Kind{"Fake",
                           [] {
                             return Made{std::make_unique<FakeFileSystem>(), "/"};
                           }}),
    [](const auto& info) { return info.param.name; });

TEST(PosixFileSystem_Links, AreNotFollowed) {
  const std::string path = NewDirectory();
  const std::string outside = NewDirectory();
  PosixFileSystem system;
  auto root = system.OpenDirectory(path).value();
  ASSERT_EQ(WriteFile(*system.OpenDirectory(outside).value(), "secret", "S"), absl::OkStatus());
  ASSERT_EQ(symlink(absl::StrCat(outside, "/secret").c_str(), absl::StrCat(path, "/f").c_str()), 0);
  ASSERT_EQ(symlink(outside.c_str(), absl::StrCat(path, "/d").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", absl::StrCat(path, "/n").c_str()), 0);

  const absl::Status opened = root->OpenFile("f").status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.message()), HasSubstr("symbolic link"));
  EXPECT_EQ(root->OpenDirectory("d").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(root->CreateFile("n").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(root->List().value()[0].kind, EntryKind::kOther);
  EXPECT_EQ(root->Remove("d"), absl::OkStatus());
  EXPECT_EQ(ReadFile(*system.OpenDirectory(outside).value(), "secret"), "S");
}

TEST(PosixFileSystem_Pipe, IsRefusedWithoutWaiting) {
  const std::string path = NewDirectory();
  ASSERT_EQ(mkfifo(absl::StrCat(path, "/pipe").c_str(), 0600), 0);
  PosixFileSystem system;
  const absl::Status opened = system.OpenDirectory(path).value()->OpenFile("pipe").status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.message()), HasSubstr("not a regular file"));
}

// What opening a socket gives; nothing but ENOENT says that there is no file.
TEST(FileErrors, OnlyENOENT_IsNotFound) {
  for (int error = 1; error < 134; ++error) {
    EXPECT_EQ(FileError("open", "f", error).code() == absl::StatusCode::kNotFound, error == ENOENT)
        << error;
  }
  EXPECT_EQ(FileError("open", "f", ENXIO).code(), absl::StatusCode::kFailedPrecondition);
}

#ifdef __x86_64__
// A file system that has no rename that never replaces: the kernel says EINVAL.
TEST(PosixFileSystem_RenameNew, WhereTheKernelLacksIt_LinksInstead) {
  PosixFileSystem system;
  auto root = system.OpenDirectory(NewDirectory()).value();
  ASSERT_EQ(WriteFile(*root, "a", "A"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root, "b", "B"), absl::OkStatus());
  bool filtered = false;
  std::thread([&] {  // the filter stays with the thread
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_renameat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {4, program};
    filtered = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
    if (!filtered) return;
    EXPECT_EQ(root->RenameNew("a", "b").code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(root->RenameNew("a", "c"), absl::OkStatus());
    EXPECT_EQ(root->RenameNew("a", "d").code(), absl::StatusCode::kNotFound);
  })
      .join();
  if (!filtered) GTEST_SKIP() << "this machine allows no filters";
  EXPECT_EQ(ReadFile(*root, "b"), "B");
  EXPECT_EQ(ReadFile(*root, "c"), "A");
  EXPECT_EQ(root->List().value().size(), 2u);
}
#endif

TEST(PosixFileSystem_DirectoryRenamed, StaysTheSame) {
  const std::string path = NewDirectory();
  PosixFileSystem system;
  auto root = system.OpenDirectory(path).value();
  ASSERT_EQ(root->CreateDirectory("d"), absl::OkStatus());
  auto inner = root->OpenDirectory("d").value();
  ASSERT_EQ(root->Rename("d", "e"), absl::OkStatus());
  ASSERT_EQ(root->CreateDirectory("d"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*inner, "x", "X"), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root->OpenDirectory("e").value(), "x"), "X");
}

TEST(PosixFileSystem_FileTooLarge, IsResourceExhausted) {
  PosixFileSystem system;
  auto file = system.OpenDirectory(NewDirectory()).value()->CreateFile("a").value();
  const absl::Status written = file->WriteAt(INT64_MAX - 10, {"x"});
  EXPECT_EQ(written.code(), absl::StatusCode::kResourceExhausted) << written;
  EXPECT_THAT(std::string(written.message()), AllOf(HasSubstr("cannot write"), HasSubstr("/a")));
}

class FakeFileSystemTest : public ::testing::Test {
 protected:
  std::unique_ptr<Directory> Root() { return system_.OpenDirectory("/").value(); }

  FakeFileSystem system_;
};

TEST_F(FakeFileSystemTest, Crash_LosesWhatWasNotSynced) {
  auto root = Root();
  auto file = root->CreateFile("a").value();
  ASSERT_EQ(file->WriteAt(0, {"kept"}), absl::OkStatus());
  ASSERT_EQ(file->Sync(), absl::OkStatus());
  ASSERT_EQ(root->Sync(), absl::OkStatus());
  ASSERT_EQ(file->WriteAt(4, {"lost"}), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root, "b", "B"), absl::OkStatus());
  ASSERT_EQ(root->Rename("a", "c"), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root, "c"), "keptlost");

  system_.Restart(FakeFileSystem::Unsynced::kLost);
  EXPECT_EQ(file->Size().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(root->List().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Root()->List().value().size(), 1u);
  EXPECT_EQ(ReadFile(*Root(), "a"), "kept");
}

TEST_F(FakeFileSystemTest, Crash_MayAlsoKeepEverything) {
  auto root = Root();
  ASSERT_EQ(root->CreateDirectory("d"), absl::OkStatus());
  ASSERT_EQ(WriteFile(*root->OpenDirectory("d").value(), "a", "A"), absl::OkStatus());
  system_.Restart(FakeFileSystem::Unsynced::kKept);
  EXPECT_EQ(ReadFile(*Root()->OpenDirectory("d").value(), "a"), "A");
}

TEST_F(FakeFileSystemTest, Crash_ByChance_TearsWritesAtEveryByte) {
  std::vector<bool> seen(7, false);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    FakeFileSystem system;
    auto root = system.OpenDirectory("/").value();
    auto file = root->CreateFile("a").value();
    ASSERT_EQ(root->Sync(), absl::OkStatus());
    ASSERT_EQ(file->WriteAt(0, {"abcdef"}), absl::OkStatus());
    system.Restart(FakeFileSystem::Unsynced::kByChance, seed);
    seen[ReadFile(*system.OpenDirectory("/").value(), "a").size()] = true;
  }
  EXPECT_EQ(seen, std::vector<bool>(7, true));
}

TEST_F(FakeFileSystemTest, CrashAtOperation_SyncDoesNotCount) {
  auto root = Root();
  auto file = root->CreateFile("a").value();
  ASSERT_EQ(root->Sync(), absl::OkStatus());
  ASSERT_EQ(file->WriteAt(0, {"A"}), absl::OkStatus());
  EXPECT_EQ(system_.operations(), 3);
  system_.CrashAtOperation(3);
  EXPECT_EQ(file->Sync().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(system_.crashed());
  EXPECT_EQ(file->Size().status().code(), absl::StatusCode::kUnavailable);
  system_.Restart(FakeFileSystem::Unsynced::kLost);
  EXPECT_FALSE(system_.crashed());
  EXPECT_EQ(ReadFile(*Root(), "a"), "");
}

TEST_F(FakeFileSystemTest, FailOperation_FailsOnceAndHalf) {
  auto root = Root();
  auto file = root->CreateFile("a").value();
  system_.FailOperation(1, absl::DataLossError("device"));
  EXPECT_EQ(file->WriteAt(0, {"abcd"}), absl::DataLossError("device"));
  EXPECT_EQ(ReadFile(*root, "a"), "ab");
  EXPECT_EQ(file->WriteAt(0, {"abcd"}), absl::OkStatus());
  EXPECT_EQ(ReadFile(*root, "a"), "abcd");
}

TEST_F(FakeFileSystemTest, FailDoneOperation_HasDoneIt) {
  auto root = Root();
  ASSERT_EQ(WriteFile(*root, "a", "A"), absl::OkStatus());
  system_.FailDoneOperation(2, absl::DataLossError("device"));
  EXPECT_EQ(root->Rename("a", "b"), absl::DataLossError("device"));
  EXPECT_EQ(ReadFile(*root, "b"), "A");
}

TEST_F(FakeFileSystemTest, Time_IsThatOfTheLastChange) {
  auto root = Root();
  system_.SetTime(absl::FromUnixSeconds(5));
  auto file = root->CreateFile("a").value();
  system_.SetTime(absl::FromUnixSeconds(7));
  EXPECT_EQ(root->List().value()[0].modified_at, absl::FromUnixSeconds(5));
  ASSERT_EQ(file->WriteAt(0, {"A"}), absl::OkStatus());
  EXPECT_EQ(root->List().value()[0].modified_at, absl::FromUnixSeconds(7));
}

TEST_F(FakeFileSystemTest, FailOperation_OfASync_LosesWhatItWasToKeep) {
  auto root = Root();
  auto file = root->CreateFile("a").value();
  ASSERT_EQ(root->Sync(), absl::OkStatus());
  ASSERT_EQ(file->WriteAt(0, {"abcd"}), absl::OkStatus());
  system_.FailOperation(3, absl::DataLossError("device"));
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_EQ(file->Sync(), absl::OkStatus());
  system_.Restart(FakeFileSystem::Unsynced::kKept);
  EXPECT_EQ(ReadFile(*Root(), "a"), "");
}

TEST_F(FakeFileSystemTest, Capacity_BoundsTheFiles) {
  system_.SetCapacity(6);
  auto root = Root();
  ASSERT_EQ(WriteFile(*root, "a", "1234"), absl::OkStatus());
  EXPECT_EQ(root->FreeBytes().value(), 2);
  EXPECT_EQ(WriteFile(*root, "b", "1234").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(*root, "b"), "12");
  ASSERT_EQ(root->Remove("a"), absl::OkStatus());
  EXPECT_EQ(WriteFile(*root, "c", "1234"), absl::OkStatus());
}

TEST_F(FakeFileSystemTest, Edit_OutlivesACrash) {
  auto root = Root();
  auto file = root->CreateFile("a").value();
  ASSERT_EQ(file->WriteAt(0, {"abc"}), absl::OkStatus());
  ASSERT_EQ(root->Sync(), absl::OkStatus());
  system_.Edit("/a", [](std::string& content) { content[1] ^= 1; });
  EXPECT_EQ(ReadFile(*root, "a"), "acc");
  system_.Restart(FakeFileSystem::Unsynced::kLost);
  EXPECT_EQ(ReadFile(*Root(), "a"), "acc");
}

}  // namespace
}  // namespace optshard
