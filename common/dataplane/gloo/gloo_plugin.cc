// GlooWire over Debian's libgloo: the source of the shared object.
#include <arpa/inet.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dataplane/gloo/gloo_wire.h"
#include "common/dataplane/gloo/signals_blocked.h"

namespace optshard {
namespace {

// Gloo writes to sockets without MSG_NOSIGNAL. This takes back the SIGPIPE that a write to a closed
// connection raises on the calling thread, and leaves the process's disposition alone.
class SigpipeHeldBack {
 public:
  SigpipeHeldBack() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }

  ~SigpipeHeldBack() {
    if (!was_pending_) {
      const timespec at_once = {0, 0};
      sigtimedwait(&sigpipe_, nullptr, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  SigpipeHeldBack(const SigpipeHeldBack&) = delete;
  SigpipeHeldBack& operator=(const SigpipeHeldBack&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  const absl::Duration clamped =
      std::min(std::max(duration, absl::ZeroDuration()), absl::Hours(24));
  return absl::ToChronoMilliseconds(absl::Ceil(clamped, absl::Milliseconds(1)));
}

class GlooTransfer : public Transfer {
 public:
  enum class Direction { kSend, kReceive };

  GlooTransfer(Direction direction, std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
      : direction_(direction), buffer_(std::move(buffer)) {}

  Outcome Wait(absl::Duration timeout, std::string* why) override {
    const auto start = std::chrono::steady_clock::now();
    const std::chrono::milliseconds limit = Milliseconds(timeout);
    try {
      const bool done = direction_ == Direction::kSend ? buffer_->waitSend(nullptr, limit)
                                                       : buffer_->waitRecv(nullptr, limit);
      return done ? Outcome::kDone : Outcome::kAborted;
    } catch (const std::exception& error) {
      // Gloo throws the same type for a time-out and a lost connection.
      if (std::chrono::steady_clock::now() - start >= limit) return Outcome::kTimedOut;
      *why = error.what();
      return Outcome::kBroken;
    }
  }

  void Abort() override {
    if (direction_ == Direction::kSend) {
      buffer_->abortWaitSend();
    } else {
      buffer_->abortWaitRecv();
    }
  }

 private:
  const Direction direction_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

class Wire : public GlooWire {
 public:
  // Throws what Gloo throws.
  explicit Wire(const Options& options) : options_(options) {
    gloo::transport::tcp::attr attributes;
    in6_addr address;  // large enough for either family
    const bool is_address = inet_pton(AF_INET, options.network.c_str(), &address) == 1 ||
                            inet_pton(AF_INET6, options.network.c_str(), &address) == 1;
    // Never a host name: Gloo reads an unset pointer when one does not resolve.
    (is_address ? attributes.hostname : attributes.iface) = options.network;
    const SignalsBlocked for_the_device_thread;
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    context_ = device_->createContext(options.rank, options.world_size);
    // Gloo waits five times its context's time-out for a connection.
    context_->setTimeout(
        std::max(Milliseconds(options.connect_timeout / 5), std::chrono::milliseconds(1)));
  }

  absl::StatusOr<std::string> Listen(Rank peer) override {
    try {
      auto& pair = context_->createPair(peer);
      pair->setLocalRank(0);
      const std::vector<char> bytes = pair->address().bytes();
      return std::string(bytes.begin(), bytes.end());
    } catch (const std::exception& error) {
      return absl::UnavailableError(error.what());
    }
  }

  absl::Status Connect(Rank peer, const std::string& address) override {
    try {
      if (!cut_) {
        context_->getPair(peer)->connect(std::vector<char>(address.begin(), address.end()));
      }
      // Gloo returns also where the pair was closed meanwhile.
      if (cut_) return absl::UnavailableError("the connections are cut");
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return absl::UnavailableError(error.what());
    }
  }

  absl::StatusOr<std::unique_ptr<Transfer>> Send(Rank peer, uint64_t slot, const void* data,
                                                 size_t bytes) override {
    // Gloo has one buffer type for both directions; it does not write to what it sends.
    return Start(GlooTransfer::Direction::kSend, peer, slot, const_cast<void*>(data), bytes);
  }

  absl::StatusOr<std::unique_ptr<Transfer>> Receive(Rank peer, uint64_t slot, void* data,
                                                    size_t bytes) override {
    return Start(GlooTransfer::Direction::kReceive, peer, slot, data, bytes);
  }

  void Finish() override {
    // A pair's destructor closes its socket; close() would reset it and drop what is not yet sent.
    for (Rank peer = 0; peer < options_.world_size; ++peer) context_->getPair(peer).reset();
  }

  void Cut() override {
    cut_ = true;
    for (Rank peer = 0; peer < options_.world_size; ++peer) {
      if (auto& pair = context_->getPair(peer); pair != nullptr) pair->close();
    }
  }

 private:
  absl::StatusOr<std::unique_ptr<Transfer>> Start(GlooTransfer::Direction direction, Rank peer,
                                                  uint64_t slot, void* data, size_t bytes) {
    const SigpipeHeldBack guard;
    try {
      auto buffer = context_->createUnboundBuffer(data, bytes);
      if (direction == GlooTransfer::Direction::kSend) {
        buffer->send(peer, slot, 0, bytes);
      } else {
        buffer->recv(peer, slot, 0, bytes);
      }
      return std::unique_ptr<Transfer>(
          std::make_unique<GlooTransfer>(direction, std::move(buffer)));
    } catch (const std::exception& error) {
      return absl::UnavailableError(error.what());
    }
  }

  const Options options_;
  std::atomic<bool> cut_{false};
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
};

}  // namespace
}  // namespace optshard

extern "C" __attribute__((visibility("default"))) void optshard_make_gloo_wire(
    const optshard::GlooWire::Options& options, std::unique_ptr<optshard::GlooWire>* wire,
    absl::Status* status) {
  try {
    *wire = std::make_unique<optshard::Wire>(options);
    *status = absl::OkStatus();
  } catch (const std::exception& error) {
    *status = absl::InvalidArgumentError(error.what());
  }
}
