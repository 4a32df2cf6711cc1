#include "client/owner/client_seams.h"

namespace optshard {
namespace {

thread_local const ClientSeams* current = nullptr;

}  // namespace

ScopedClientSeams::ScopedClientSeams(const ClientSeams& seams) { current = &seams; }
ScopedClientSeams::~ScopedClientSeams() { current = nullptr; }
const ClientSeams* ScopedClientSeams::Current() { return current; }

}  // namespace optshard
