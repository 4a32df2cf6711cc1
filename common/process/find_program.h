// Where the programs are that a process starts.
#ifndef OPTSHARD_COMMON_PROCESS_FIND_PROGRAM_H_
#define OPTSHARD_COMMON_PROCESS_FIND_PROGRAM_H_

#include <string>

#include "absl/status/statusor.h"

namespace optshard {

// A program of the project: `given` where it is not empty, else beside this program, else where the
// build puts it in `package`. NOT_FOUND naming the option --`flag` that says where it is.
absl::StatusOr<std::string> FindOwnProgram(const std::string& name, const std::string& package,
                                           const std::string& given, const std::string& flag);

// Any program, as shells find it: a name with a slash is a path, another one is looked for in the
// folders of `path`, which is the variable PATH. NOT_FOUND where there is none;
// FAILED_PRECONDITION where it is a folder, or cannot be executed.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PROCESS_FIND_PROGRAM_H_
