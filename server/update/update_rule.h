// An update rule: its declaration (options, slots) and its arithmetic on spans of elements.
//
// A rule is one file, server/update/rules/NAME.cc: the formula, written once for one vector of
// elements, and the declaration from which validation, inspection and documentation follow.
// docs/numerics.md says which operations a formula may use, and why.
#ifndef OPTSHARD_SERVER_UPDATE_UPDATE_RULE_H_
#define OPTSHARD_SERVER_UPDATE_UPDATE_RULE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/dtype.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/update/formula_limits.h"
#include "server/update/slot_array.h"

namespace optshard {

struct OptionSpec {
  std::string name;          // PyTorch's
  HyperValue default_value;  // also fixes the type
  std::string range;         // for people: "a finite number, >= 0", "two numbers in [0, 1)"
  std::function<bool(const HyperValue&)> valid;  // asked only about values of the right type
  std::string doc;
  std::vector<std::string> choices = {};  // of an option that is one of several names
};

// How a slot can be kept in 8 bits (common/block_code.h).
enum class EightBit : uint8_t {
  kNo,
  kSigned,       // an average or a sum of gradients
  kNonNegative,  // an average of squares, or the largest one
};

// How many values a slot has for a parameter, in a rule that needs whole parameters.
struct SlotExtent {
  // The slot's shape for a parameter of shape `parameter`; nothing: such a parameter lacks the
  // slot. Null: the slot has one value for each element of every parameter. A parameter without
  // elements has slots without values.
  absl::optional<std::vector<int64_t>> (*shape_for)(absl::Span<const int64_t> parameter) = nullptr;
  std::string doc = "";  // for people, where shape_for is not null
};

// One slot of a rule.
struct SlotSpec {
  std::string name;  // PyTorch's: "exp_avg"
  std::string doc;
  // The flag or number that decides whether it exists: where it is true, or not 0. Once the
  // optimizer is constructed, that option may change only as far as its slots stay: a momentum from
  // 0.9 to 0.95, never to 0 (UpdateRule::ValidateChange). "": it always exists.
  std::string exists_with = "";
  // The number that every element is before the first step. "": 0.
  std::string begins_with = "";
  EightBit eight_bit = EightBit::kNo;
  SlotExtent extent = {};  // by default one number for each element of the parameter
};

// A slot that is one number for the whole parameter, and changes with each of its updates: NAdam's
// mu_product. Every owner of a part of the parameter has it.
struct ScalarSlotSpec {
  std::string name;  // PyTorch's
  std::string doc;
  std::string begins_with = "";  // an option
  double initial = 0;            // where that is ""
};

// A slot that exists under certain hyperparameters.
struct Slot {
  std::string name;
  std::string doc;
  double initial = 0;
  EightBit eight_bit = EightBit::kNo;
  SlotExtent extent = {};

  // Whether its values do not follow the parameter's elements. They are then kept as a whole.
  bool has_own_shape() const { return extent.shape_for != nullptr; }
  // Its shape for a parameter of that shape, or nothing where such a parameter lacks it.
  absl::optional<std::vector<int64_t>> ShapeFor(absl::Span<const int64_t> parameter) const;
  // How many values go with `elements` elements of the parameter, all of them where the slot has a
  // shape of its own.
  int64_t ValuesFor(absl::Span<const int64_t> parameter, int64_t elements) const;
};

// Whether a rule takes gradients that have only some of a parameter's rows.
enum class SparseGradients : uint8_t {
  kNo,
  kToo,   // beside dense ones
  kOnly,  // it takes no others
};

struct RuleSpec {
  std::string name;    // "adam"
  std::string doc;     // one line
  std::string source;  // where the formula comes from: paper or PyTorch page
  // False: an update needs the whole parameter, with its shape.
  bool element_wise = true;
  SparseGradients sparse_gradients = SparseGradients::kNo;  // else the rule is element-wise
  std::vector<DType> dtypes;  // of the parameters that it updates, in any order; empty: of all
  // PyTorch keeps the parameter's step count as a slot "step" of this rule.
  bool exports_step = false;
  std::vector<OptionSpec> options;
  std::vector<SlotSpec> slots;
  std::vector<ScalarSlotSpec> scalar_slots;

  std::string DTypeNames() const;  // "float32, float64"
};

constexpr int kMaxScalarSlots = 2;

// The values of a parameter's scalar slots, in the order of RuleSpec::scalar_slots.
using ScalarSlots = std::array<double, kMaxScalarSlots>;

// All that a formula reads besides gradient, parameter and slots: computed in double from the
// hyperparameters and the parameter's step count, then rounded once to what the formula computes
// in. The meaning of the entries is the rule's own. Part of the step record.
struct Coefficients {
  // What Set rounds to: float64, or float32 for every other type of parameter.
  DType arithmetic = DType::kFloat32;
  std::array<double, kMaxCoefficients> values{};
  SlotSet slots = 0;  // which there are: it chooses the formula's variant
  // Before the step for SetCoefficients, which makes them those after it.
  ScalarSlots scalar_slots{};

  void Set(int index, double value);
  // values[rest] becomes what rounding took from values[index].
  void SetWithRest(int index, int rest, double value);
};

// Waiting for streaming stores takes a third of a microsecond, and short spans belong to small
// models, whose next forward pass finds an ordinary copy in the cache.
constexpr int64_t kElementsWorthStreaming = 4096;

// What the ranks of one host reach of each other's replicas, for an update in one pass over memory:
// the average of their gradients is taken, and their copies of the parameter are written, beside
// the update itself. The bits are those of AverageOfGroups (common/dataplane), Update and copying.
//
// Fast where all is 64-byte aligned: if the copies are, and the span has at least
// kElementsWorthStreaming, they are written past the caches (streaming stores), otherwise by
// ordinary stores. Either way they are visible to whoever learns that Update has returned.
struct ReplicaSpans {
  // By position in the order of the reduction tree: the ranks of its first node group, then of the
  // second, ... Null counts as zeros. Empty: SpanUpdate::gradient is the averaged gradient already.
  absl::Span<const void* const> gradients;  // of SpanUpdate::gradient's dtype
  absl::Span<const int> group_sizes;  // of the tree's node groups; their sum is gradients.size()
  // The other replicas of the parameter. What they hold is not read.
  absl::Span<void* const> copies;  // of the parameter's dtype
  // The span's first element in each of the arrays above: whoever cuts a span cannot move those.
  int64_t first = 0;
};

// One stretch of one parameter. Arrays need only natural alignment; no two overlap.
//
// A float64 parameter has gradients and slots in float64. With every other parameter, each array
// may be of any other type: the formula computes in float32, loads widen, stores round to nearest,
// ties to even. A span with a coded slot begins with a block, and ends with one or with the
// parameter.
struct SpanUpdate {
  Buffer parameter;
  ConstBuffer gradient;  // no array where the replicas' gradients are given, but their dtype
  // Those of UpdateRule::Slots, in that order; no array where the parameter's shape lacks the slot.
  // One with a shape of its own is given whole.
  std::array<SlotArray, kMaxSlots> slots;
  // Float32, of a 16-bit parameter: what is updated instead. The parameter becomes it, rounded.
  Buffer master;
  // A float32 parameter may have a master, too, if this is a 16-bit type: the parameter then
  // becomes the master, rounded to a value of that.
  DType rounded_to = DType::kFloat32;
  // Of a 16-bit parameter without a master: what is updated is the corrected parameter
  // (common/parameter_correction.h), which becomes the parameter and a new correction. May be null.
  int8_t* correction = nullptr;
  int64_t elements = 0;
  // Of a formula that leaves the parameter as it is, and has no copies: it need not be written.
  bool keeps_parameter = false;
  ReplicaSpans replicas;  // none by default
  // For rules that are not element-wise, of which a span is a whole parameter: its shape, and
  // memory of the calling thread's own (UpdateRule::WorkspaceBytes), 64-byte aligned, with any
  // content.
  absl::Span<const int64_t> shape;
  void* workspace = nullptr;

  // `count` of its elements, from element `from` on; a multiple of kCodeGrid where a slot is coded.
  // Wants slots with a value for each element.
  SpanUpdate Part(int64_t from, int64_t count) const;
};

// Who runs the formula. All give the same bits.
enum class DriverKind : uint8_t { kScalar = 1, kSimd = 2 };

// Stateless and thread-safe.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual const RuleSpec& spec() const = 0;

  // The name of the one formula that is all of its arithmetic, by which a device finds the kernels;
  // null of a rule that does more.
  virtual const char* formula() const { return nullptr; }

  // The slots that exist under these (validated) hyperparameters, in the order of RuleSpec::slots.
  std::vector<Slot> Slots(const Hyperparameters& group) const;

  // What the scalar slots are before the first step. The rest of the array is 0.
  ScalarSlots InitialScalarSlots(const Hyperparameters& group) const;

  // For a parameter of `dtype`. step: its own count of updates, this one included; the first is 1.
  // `scalar_slots`: those after the last one.
  Coefficients Prepare(const Hyperparameters& group, StepNumber step, DType dtype = DType::kFloat32,
                       const ScalarSlots& scalar_slots = {}) const;

  // Whether it updates parameters of that type. INVALID_ARGUMENT naming the rule, the types that it
  // takes, and the way out.
  absl::Status CheckDType(DType dtype) const;

  // Whether it updates parameters of that shape, here. INVALID_ARGUMENT with the way out, or
  // FAILED_PRECONDITION where a library that it needs is missing.
  virtual absl::Status CheckParameter(absl::Span<const int64_t> shape) const;

  // What an update of such a parameter costs beside that of another one, by which owners are
  // balanced: a measure of the rule's own. 0: as its number of elements.
  virtual int64_t UpdateCost(absl::Span<const int64_t> shape) const;

  // How much of SpanUpdate::workspace an update of such a parameter needs.
  virtual int64_t WorkspaceBytes(absl::Span<const int64_t> shape, DType dtype) const;

  // The formula over a span. Calls on disjoint spans may run in parallel.
  virtual void Update(DriverKind driver, const Coefficients& coefficients,
                      const SpanUpdate& span) const = 0;

  // Defaults filled in. INVALID_ARGUMENT for an unknown option (the known ones are listed), a value
  // of the wrong type or out of its range, options that do not go together: names rule, option,
  // value and range.
  absl::StatusOr<Hyperparameters> Validate(const Hyperparameters& given) const;

  // What keeps the rule from taking a sparse gradient under these (validated) hyperparameters,
  // where it takes them at all: a "weight_decay", since the gradient has not all rows that decay.
  // INVALID_ARGUMENT naming rule, option and value.
  absl::Status ValidateSparse(const Hyperparameters& group) const;

  // Whether a sparse gradient changes also the rows that it has not, as one of zeros does: a rule
  // that goes on in an earlier direction. Otherwise they stay as they are, and so do their slots.
  virtual bool ChangesOtherRows(const Hyperparameters& group) const;

  // Both validated. INVALID_ARGUMENT, naming the options at fault, where the slots that exist under
  // `now` are not those of `constructed`.
  absl::Status ValidateChange(const Hyperparameters& constructed, const Hyperparameters& now) const;

 protected:
  // Sets the coefficients of Prepare, and updates the scalar slots.
  virtual void SetCoefficients(const Hyperparameters& group, StepNumber step,
                               Coefficients* out) const = 0;

  // What no single option's range can say: nesterov needs a momentum. Every option is there and in
  // its range. INVALID_ARGUMENT; Validate adds the rule's name.
  virtual absl::Status ValidateTogether(const Hyperparameters& group) const;
};

// The rules that are linked in, by name.
class RuleRegistry {
 public:
  // INVALID_ARGUMENT, listing the known rules.
  static absl::StatusOr<const UpdateRule*> Find(absl::string_view name);
  static std::vector<const UpdateRule*> All();  // by name

  // At static initialisation of a rule's file; returns true. Ends the process where a name is given
  // twice, or the declaration is wrong: too many slots, one named as those of every rule, an option
  // that there is not.
  static bool Register(const UpdateRule* rule);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_UPDATE_RULE_H_
