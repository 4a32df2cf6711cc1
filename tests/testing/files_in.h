// What a directory has, for comparisons.
#ifndef OPTSHARD_TESTS_TESTING_FILES_IN_H_
#define OPTSHARD_TESTS_TESTING_FILES_IN_H_

#include <map>
#include <string>

#include "server/checkpoint/file_system.h"

namespace optshard::testing {

// The bytes of the files of a directory that has nothing else, by name. Ends the test where they
// cannot be read.
std::map<std::string, std::string> FilesIn(FileSystem& system, const std::string& path);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FILES_IN_H_
