// Linked into whatever uses gRPC under --config=tsan.
//
// gRPC's library is Debian's, not instrumented: tsan does not see how it hands a call from one of
// its threads to another, but sees both ends where the code is a template in its headers, compiled
// here. Suppressed are gRPC's own operations and callback tags, by the functions that only they run
// through. A race in a handler of ours has no such frame. StateStream is made in one of its threads
// and called and destroyed in others: its constructor and destructor race with nothing else. So
// are FollowReactor, WatchReactor, the call of ShardSavingService, and gRPC's own objects of a
// client's calls and of a service's methods, which are made before the server starts: a thread that
// another server started may handle its calls. What our callbacks of such calls touch,
// common/rpc/hand_over.h orders.
//
// The name is the sanitizer's: NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallOpSet\n"
         "race:grpc::internal::CallOpSend\n"
         "race:grpc::internal::CallOpServerSend\n"
         "race:grpc::internal::InterceptorBatchMethodsImpl\n"
         "race:grpc::internal::CallbackWithSuccessTag::Clear\n"
         "race:grpc::internal::CallbackWithSuccessTag::Set\n"
         "race:grpc::internal::CallbackWithSuccessTag::~CallbackWithSuccessTag\n"
         "race:grpc::internal::Call::\n"
         "race:ServerCallbackUnaryImpl::~ServerCallbackUnaryImpl\n"
         "race:ServerCallbackUnaryImpl::Finish\n"
         "race:ServerCallbackWriterImpl::~ServerCallbackWriterImpl\n"
         "race:ServerCallbackWriterImpl::Finish\n"
         "race:ServerCallbackWriterImpl::Write\n"
         "race:^StateStream$\n"
         "race:^~StateStream$\n"
         "race:^FollowReactor$\n"
         "race:^~FollowReactor$\n"
         "race:^WatchReactor$\n"
         "race:^~WatchReactor$\n"
         "race:ShardSavingService::Call::Call(\n"
         "race:ShardSavingService::Call::~Call\n"
         "race:>::ClientCallbackReaderWriterImpl(\n"
         "race:>::~ClientCallbackReaderWriterImpl\n"
         "race:>::ClientCallbackReaderImpl<\n"
         "race:>::~ClientCallbackReaderImpl\n"
         "race:>::CallbackUnaryCallImpl(\n"
         "race:>::CallbackUnaryHandler(\n"
         "race:>::CallbackClientStreamingHandler(\n"
         "race:>::CallbackServerStreamingHandler(\n"
         "race:>::CallbackBidiHandler(\n"
         "race:grpc::ByteBuffer::Clear\n";
}
