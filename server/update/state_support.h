// Which rules work with which formats of state.
#ifndef OPTSHARD_SERVER_UPDATE_STATE_SUPPORT_H_
#define OPTSHARD_SERVER_UPDATE_STATE_SUPPORT_H_

#include "absl/status/status.h"
#include "common/block_code.h"
#include "common/state_format.h"
#include "server/update/update_rule.h"

namespace optshard {

// INVALID_ARGUMENT where the format has 8 bits and not all slots of the rule are declared for
// them: names the rule, the slots, the rules that work with the format, and the way out.
absl::Status CheckStateFormat(const UpdateRule& rule, StateFormat format);

// How such a slot is coded. `format` is a coded one, `kept` not EightBit::kNo.
BlockCode BlockCodeOf(StateFormat format, EightBit kept);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_STATE_SUPPORT_H_
