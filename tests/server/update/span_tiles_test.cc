// Spans whose arrays are of several types: the bits of widening everything, one Update in the type
// that is computed in, and rounding everything back.
#include "server/update/span_tiles.h"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/half.h"
#include "gtest/gtest.h"
#include "server/update/update_rule.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20261122;
constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

float ValueOf(ConstBuffer array, int64_t i) {
  switch (array.dtype()) {
    case DType::kBFloat16:
      return FromBFloat16(array.As<uint16_t>()[i]);
    case DType::kFloat16:
      return FromFloat16(array.As<uint16_t>()[i]);
    default:
      return array.As<float>()[i];
  }
}

void SetValue(Buffer array, int64_t i, float value) {
  switch (array.dtype()) {
    case DType::kBFloat16:
      array.As<uint16_t>()[i] = ToBFloat16(value);
      break;
    case DType::kFloat16:
      array.As<uint16_t>()[i] = ToFloat16(value);
      break;
    default:
      array.As<float>()[i] = value;
  }
}

// An array of any float type with a guard element on either side.
class TypedArray {
 public:
  TypedArray(DType dtype, int64_t elements, int misalignment, std::mt19937& random)
      : dtype_(dtype), offset_(32 + misalignment) {
    memory_.resize((elements + offset_ + 32) * 4 / sizeof(Line));
    memory_.resize(memory_.size() + 1);
    for (int64_t i = -1; i <= elements; ++i) {
      // Positive: some slots are averages of squares.
      SetValue(array(), i, 0.001f + static_cast<float>(random() % 4096) / 512);
    }
  }

  Buffer array() { return Buffer(static_cast<void*>(memory_.data()), dtype_).From(offset_); }
  bool operator==(const TypedArray& other) const {
    return std::memcmp(memory_.data(), other.memory_.data(), memory_.size() * sizeof(Line)) == 0;
  }

 private:
  struct alignas(64) Line {
    char bytes[64] = {};
  };

  DType dtype_;
  int64_t offset_;
  std::vector<Line> memory_;
};

struct Shape {
  int64_t elements = 0;
  int misalignment = 0;
  std::vector<int> group_sizes = {1};
  bool copies = false;
  bool missing = false;  // the first replica has no gradient
  bool master = false;
  // Replicas in bfloat16, even of one, and slots in float32, instead of any types.
  bool bfloat16 = false;
  int64_t first = 0;     // so many elements before the span's stay as they are
  bool special = false;  // masters have values that rounding is known by
};

// A parameter with gradients, slots and copies, each array of a type drawn at random.
struct TypedSpan {
  TypedSpan(const UpdateRule& rule, const Shape& shape, uint32_t seed)
      : shape(shape), group(*rule.Validate({})) {
    std::mt19937 random(seed);
    const auto any = [&random] { return kFloatTypes[random() % 3]; };
    const DType parameter_dtype = shape.bfloat16 ? DType::kBFloat16 : any();
    if (shape.master && parameter_dtype == DType::kFloat32) {
      rounded_to = random() % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    }
    const DType gradient_dtype = shape.bfloat16 ? DType::kBFloat16 : any();
    int replicas = 0;
    for (const int size : shape.group_sizes) replicas += size;
    const auto add = [&](DType dtype) {
      arrays.emplace_back(dtype, shape.elements, shape.misalignment, random);
    };
    add(parameter_dtype);
    for (const Slot& slot : rule.Slots(group)) {
      static_cast<void>(slot);
      add(shape.bfloat16 ? DType::kFloat32 : any());
      ++slots;
    }
    for (int k = 0; k < replicas; ++k) add(gradient_dtype);
    for (int k = 1; k < replicas && shape.copies; ++k) add(parameter_dtype);
    if (shape.master) add(DType::kFloat32);
    this->replicas = replicas;
    constexpr float kSpecial[] = {HUGE_VALF, -HUGE_VALF,  NAN,           -0.0f,      0x1p-149f,
                                  FLT_MAX,   0x1p-130f,   0x1.01p0f,     0x1.03p0f,  0x1.010002p0f,
                                  -FLT_MAX,  0x1.fep127f, 0x1.00fffep0f, -0x1.01p-3f};
    for (int64_t i = 0; i < shape.elements && shape.special; i += 5) {
      SetValue(master(), i, kSpecial[i / 5 % std::size(kSpecial)]);
    }
  }

  Buffer master() { return arrays.back().array(); }

  Buffer gradient(int k) { return arrays[1 + slots + k].array(); }

  SpanUpdate Span() {
    SpanUpdate span;
    span.parameter = arrays[0].array();
    for (int k = 0; k < slots; ++k) span.slots[k] = arrays[1 + k].array();
    span.elements = shape.elements;
    span.gradient = gradient(0);
    if (shape.master) span.master = master();
    span.rounded_to = rounded_to;
    gradients.clear();
    copies.clear();
    if (replicas > 1 || shape.bfloat16) {
      for (int k = 0; k < replicas; ++k) gradients.push_back(gradient(k).data());
      if (shape.missing) gradients[0] = nullptr;
      span.gradient = ConstBuffer(nullptr, gradient(0).dtype());
      span.replicas.gradients = gradients;
      span.replicas.group_sizes = shape.group_sizes;
      for (int k = 1; k < replicas && shape.copies; ++k) {
        copies.push_back(arrays[slots + replicas + k].array().data());
      }
      span.replicas.copies = absl::MakeSpan(copies);
    }
    return span;
  }

  float Average(int64_t i) {
    const auto value = [&](int k) {
      return shape.missing && k == 0 && (replicas > 1 || shape.bfloat16) ? 0.0f
                                                                         : ValueOf(gradient(k), i);
    };
    float total = 0;
    int member = 0;
    for (size_t g = 0; g < shape.group_sizes.size(); ++g) {
      float sum = value(member++);
      for (int k = 1; k < shape.group_sizes[g]; ++k) sum += value(member++);
      total = g == 0 ? sum : total + sum;
    }
    return total / static_cast<float>(replicas);
  }

  // One element after the other, in float32.
  void UpdateOneByOne(const UpdateRule& rule, const Coefficients& coefficients) {
    for (int64_t i = shape.first; i < shape.elements; ++i) {
      float parameter = ValueOf(shape.master ? master() : arrays[0].array(), i);
      const float average = Average(i);
      std::vector<float> state;
      for (int k = 0; k < slots; ++k) state.push_back(ValueOf(arrays[1 + k].array(), i));
      SpanUpdate span;
      span.parameter = &parameter;
      span.gradient = &average;
      for (int k = 0; k < slots; ++k) span.slots[k] = &state[k];
      span.elements = 1;
      rule.Update(DriverKind::kScalar, coefficients, span);
      for (int k = 0; k < slots; ++k) SetValue(arrays[1 + k].array(), i, state[k]);
      if (shape.master) SetValue(master(), i, parameter);
      if (rounded_to == DType::kBFloat16) parameter = FromBFloat16(ToBFloat16(parameter));
      if (rounded_to == DType::kFloat16) parameter = FromFloat16(ToFloat16(parameter));
      SetValue(arrays[0].array(), i, parameter);
      for (int k = 1; k < replicas && shape.copies; ++k) {
        SetValue(arrays[slots + replicas + k].array(), i, parameter);
      }
    }
  }

  Shape shape;
  Hyperparameters group;
  DType rounded_to = DType::kFloat32;
  int slots = 0;
  int replicas = 1;
  std::vector<TypedArray> arrays;  // parameter, slots, gradients, copies, master
  std::vector<const void*> gradients;
  std::vector<void*> copies;
};

class SpanTilesTest : public ::testing::Test {
 protected:
  ~SpanTilesTest() override { ChooseTarget(0); }

  static void ExpectSameBits(const UpdateRule& rule, const Shape& shape, uint32_t seed) {
    TypedSpan expected(rule, shape, seed);
    const Coefficients coefficients = rule.Prepare(expected.group, 2, DType::kBFloat16);
    TypedSpan actual = expected;
    expected.UpdateOneByOne(rule, coefficients);
    const DriverKind driver = seed % 8 == 3 ? DriverKind::kScalar : DriverKind::kSimd;
    rule.Update(driver, coefficients,
                actual.Span().Part(shape.first, shape.elements - shape.first));
    for (size_t k = 0; k < expected.arrays.size(); ++k) {
      ASSERT_TRUE(actual.arrays[k] == expected.arrays[k])
          << rule.spec().name << ", array " << k << ", " << shape.elements << " elements, seed "
          << seed;
    }
  }
};

TEST_F(SpanTilesTest, AnyTypesAndLengths_SameBitsAsOneByOne) {
  uint32_t seed = kSeed;
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    for (const UpdateRule* rule : RuleRegistry::All()) {
      if (!rule->spec().element_wise) continue;
      for (const int64_t elements : {1, 31, 64, 511, 513, 1100, 4095, 4097, 8200}) {
        for (const std::vector<int>& tree : {std::vector<int>{1}, {2}, {2, 1}}) {
          Shape shape;
          shape.elements = elements;
          shape.group_sizes = tree;
          shape.misalignment = static_cast<int>(seed % 5);
          shape.copies = seed % 2 == 0;
          shape.missing = seed % 7 == 0;
          shape.master = seed % 3 == 0;
          ExpectSameBits(*rule, shape, seed++);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Long enough for streaming stores, aligned as they want it and not, with a part of a line left.
TEST_F(SpanTilesTest, LongSpansWithCopies_SameBitsAsOneByOne) {
  uint32_t seed = kSeed;
  for (const int misalignment : {0, 1}) {
    for (int trial = 0; trial < 6; ++trial) {
      Shape shape;
      shape.first = int64_t{256} * (trial % 3);
      shape.elements = shape.first + 5000 + int64_t{13} * trial;
      shape.group_sizes = {3};
      shape.misalignment = misalignment;
      shape.copies = trial != 5;
      shape.master = trial % 2 == 0;
      ExpectSameBits(**RuleRegistry::Find("adam"), shape, seed++);
      if (HasFatalFailure()) return;
    }
  }
}

// In one pass where lines can be streamed, and by tiles where they cannot.
TEST_F(SpanTilesTest, BFloat16BesideMasters_SameBitsAsOneByOne) {
  uint32_t seed = kSeed;
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    for (const UpdateRule* rule : RuleRegistry::All()) {
      if (!rule->spec().element_wise) continue;
      for (const std::vector<int>& tree : {std::vector<int>{1}, {2}, {2, 1}}) {
        Shape shape;
        shape.first = int64_t{256} * (seed % 3);
        shape.elements = shape.first + 4080 + seed % 100;
        shape.special = seed % 2 == 0;
        shape.group_sizes = tree;
        shape.misalignment = seed % 4 == 0 ? 1 : 0;
        shape.copies = seed % 5 != 0;
        shape.missing = seed % 7 == 0;
        shape.master = true;
        shape.bfloat16 = true;
        ExpectSameBits(*rule, shape, seed++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(SpanTilesTest, CoefficientsForAnotherType_Die) {
  const UpdateRule& rule = **RuleRegistry::Find("sgd");
  double parameter = 1;
  const double gradient = 1;
  SpanUpdate span;
  span.parameter = &parameter;
  span.gradient = &gradient;
  span.elements = 1;
  EXPECT_DEATH(rule.Update(DriverKind::kSimd, rule.Prepare(*rule.Validate({}), 1), span),
               "coefficients of a float64 parameter");
  const float narrow = 1;
  span.gradient = &narrow;
  EXPECT_DEATH(
      rule.Update(DriverKind::kSimd, rule.Prepare(*rule.Validate({}), 1, DType::kFloat64), span),
      "gradient of a float64 parameter");
  float master = 1;
  span.gradient = &gradient;
  span.master = &master;
  EXPECT_DEATH(
      rule.Update(DriverKind::kSimd, rule.Prepare(*rule.Validate({}), 1, DType::kFloat64), span),
      "float32 master of a float64 parameter");
  span.rounded_to = DType::kBFloat16;
  EXPECT_DEATH(
      rule.Update(DriverKind::kSimd, rule.Prepare(*rule.Validate({}), 1, DType::kFloat64), span),
      "a float64 parameter is to be rounded to bfloat16, expected a float32 one");
}

}  // namespace
}  // namespace optshard::testing
