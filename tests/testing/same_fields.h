// Shows for a test of a round trip that its message leaves no field out.
#ifndef OPTSHARD_TESTS_TESTING_SAME_FIELDS_H_
#define OPTSHARD_TESTS_TESTING_SAME_FIELDS_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace optshard::testing {

// The fields of `sent` that have the same value in `plain`, as paths such as "header.rank". `plain`
// is made from a value with nothing but defaults. A field of this list could be lost on the way and
// nobody would notice. Elements of a repeated message count together: one that differs is enough.
// Of a oneof, only the chosen field counts.
std::vector<std::string> SameFields(const google::protobuf::Message& sent,
                                    const google::protobuf::Message& plain);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_SAME_FIELDS_H_
