// A trainer that links a protobuf of its own: it keeps what it has trained in messages, between its
// steps. It has optshard's messages, too, as programs that speak to its services have.
#include <ATen/ops/ones.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"
#include "proto/optshard/v1/coordinator.pb.h"
#include "report.pb.h"

namespace {

void Check(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

// There and back in the formats of protobuf.
own::Report SentAndReceived(const own::Report& report) {
  own::Report received;
  Check(received.ParseFromString(report.SerializeAsString()), "binary");
  std::string text;
  Check(google::protobuf::TextFormat::PrintToString(received, &text), "text");
  own::Report read;
  Check(google::protobuf::TextFormat::ParseFromString(text, &read), "text back");
  std::string json;
  Check(google::protobuf::util::MessageToJsonString(read, &json).ok(), "JSON");
  own::Report last;
  Check(google::protobuf::util::JsonStringToMessage(json, &last).ok(), "JSON back");
  return last;
}

void Train() {
  const auto options = optshard::ValueOrThrow(optshard::ShardedOptimizerOptions::FromEnvironment());
  std::vector<at::Tensor> parameters{at::ones({64, 3}), at::ones({7})};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_(true);
  optshard::ShardedOptimizer optimizer(parameters, optshard::RuleOptions("adam").Set("lr", 0.1),
                                       options);
  own::Report report;
  for (int step = 1; step <= 20; ++step) {
    double loss = 0;
    for (at::Tensor& parameter : parameters) {
      // The gradient of a square, and every rank with a share of its own.
      parameter.mutable_grad() = parameter.detach().mul(1 + options.rank);
      loss += parameter.detach().square().sum().item<double>();
    }
    optimizer.step();
    report.set_step(step);
    report.add_losses(loss);
    report = SentAndReceived(report);
  }
  optimizer.verify_replicas();
  report.set_checksum(optshard::ParametersChecksum(parameters));
  report = SentAndReceived(report);
  Check(report.losses_size() == 20 && report.losses(19) < report.losses(0) / 10, "training");
  std::printf("step %ld loss %.17g checksum %lu\n", static_cast<long>(report.step()),
              report.losses(19), static_cast<unsigned long>(report.checksum()));
}

}  // namespace

int main() {
  try {
    GOOGLE_PROTOBUF_VERIFY_VERSION;
    Check(optshard::v1::JoinRequest::descriptor()->file()->name() ==
              "proto/optshard/v1/coordinator.proto",
          "optshard's messages");
    Train();
    google::protobuf::ShutdownProtobufLibrary();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
