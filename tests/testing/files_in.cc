#include "tests/testing/files_in.h"

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace optshard::testing {

std::map<std::string, std::string> FilesIn(FileSystem& system, const std::string& path) {
  std::map<std::string, std::string> files;
  const auto directory = system.OpenDirectory(path).value();
  const auto entries = directory->List().value();
  for (const DirectoryEntry& entry : entries) {
    std::string& bytes = files[entry.name];
    bytes.resize(static_cast<size_t>(entry.bytes));
    EXPECT_EQ(directory->OpenFile(entry.name).value()->ReadAt(0, absl::MakeSpan(bytes)).value(),
              bytes.size());
  }
  return files;
}

}  // namespace optshard::testing
