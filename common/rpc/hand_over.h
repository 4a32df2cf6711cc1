// What gRPC orders and thread sanitizer does not see.
#ifndef OPTSHARD_COMMON_RPC_HAND_OVER_H_
#define OPTSHARD_COMMON_RPC_HAND_OVER_H_

#if defined(__SANITIZE_THREAD__)  // by gcc, which --config=tsan compiles with
extern "C" void __tsan_release(void* address);
extern "C" void __tsan_acquire(void* address);
#endif

namespace optshard {

// gRPC orders what a thread does before it starts a call before the call's callback, in another
// thread. Debian's library of it is not instrumented, so that tsan must be told: HandOver before
// the start, and TakeOver first in the callback, of the same object. Without tsan they do nothing.
inline void HandOver([[maybe_unused]] void* call) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(call);
#endif
}
inline void TakeOver([[maybe_unused]] void* call) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(call);
#endif
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_HAND_OVER_H_
