// Join requests for tests.
#ifndef OPTSHARD_TESTS_SERVER_COORDINATOR_JOIN_REQUESTS_H_
#define OPTSHARD_TESTS_SERVER_COORDINATOR_JOIN_REQUESTS_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "common/membership/membership.h"

namespace optshard {

// "fc.weight" [rows, 8] and "fc.bias" [rows].
inline ParameterSpace TestSpace(int64_t rows = 4) {
  ParameterSpec weight;
  weight.name = "fc.weight";
  weight.shape = {rows, 8};
  ParameterSpec bias;
  bias.name = "fc.bias";
  bias.shape = {rows};
  return ParameterSpace({GroupSpec{{weight, bias}}});
}

inline JoinRequest TestJoin(Rank rank, int world_size, const std::string& optimizer = "default") {
  JoinRequest request;
  request.job = "optshard";
  request.optimizer = optimizer;
  request.rank = rank;
  request.spec.world_size = world_size;
  request.request_id = absl::StrCat("join-", rank);
  request.spec.space = TestSpace();
  request.spec.rules = {{"adam"}};
  request.node = "node-a";
  request.owner_address = absl::StrCat("127.0.0.1:", 4000 + rank);
  request.pid = 100 + rank;
  return request;
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_SERVER_COORDINATOR_JOIN_REQUESTS_H_
