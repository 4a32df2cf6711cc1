#include "common/block_code.h"

#include <cstring>

#include "common/coded_blocks.h"

namespace optshard {
namespace {

bool IsDynamic(BlockCode code) {
  return code == BlockCode::kDynamicSigned || code == BlockCode::kDynamicUnsigned;
}

int64_t ScaleSize(BlockCode code) { return IsDynamic(code) ? sizeof(float) : sizeof(uint16_t); }

void EncodeBlocks(const float* values, int64_t blocks, const CodedArray& to,
                  LinesAhead* meanwhile) {
  return IsDynamic(to.code) ? EncodeDynamicBlocks(values, blocks, to, meanwhile)
                            : EncodeCompandedBlocks(values, blocks, to, meanwhile);
}

void DecodeBlocks(const CodedArray& from, int64_t blocks, float* values, LinesAhead* meanwhile) {
  return IsDynamic(from.code) ? DecodeDynamicBlocks(from, blocks, values, meanwhile)
                              : DecodeCompandedBlocks(from, blocks, values, meanwhile);
}

}  // namespace

int64_t BlockElements(BlockCode code) { return IsDynamic(code) ? 256 : 32; }

int64_t CodeBytes(BlockCode, int64_t elements) { return elements; }

int64_t ScaleBytes(BlockCode code, int64_t elements) {
  const int64_t block = BlockElements(code);
  return (elements / block + (elements % block != 0 ? 1 : 0)) * ScaleSize(code);
}

CodedArray CodedArray::From(int64_t index) const {
  if (codes == nullptr) return *this;
  CodedArray later = *this;
  later.codes += CodeBytes(code, index);
  later.scales = static_cast<char*>(scales) + ScaleBytes(code, index);
  return later;
}

void Encode(const float* values, int64_t elements, const CodedArray& to, LinesAhead* meanwhile) {
  const int64_t block = BlockElements(to.code);
  const int64_t whole = elements / block;
  EncodeBlocks(values, whole, to, meanwhile);
  const int64_t rest = elements - whole * block;
  if (rest == 0) return;
  // What is not there counts as zeros.
  alignas(64) float padded[kCodeGrid] = {};
  alignas(64) uint8_t codes[kCodeGrid];
  std::memcpy(padded, values + whole * block, rest * sizeof(float));
  const CodedArray last = to.From(whole * block);
  EncodeBlocks(padded, 1, {to.code, codes, last.scales}, meanwhile);
  std::memcpy(last.codes, codes, rest);
}

void Decode(const CodedArray& from, int64_t elements, float* values, LinesAhead* meanwhile) {
  const int64_t block = BlockElements(from.code);
  const int64_t whole = elements / block;
  DecodeBlocks(from, whole, values, meanwhile);
  const int64_t rest = elements - whole * block;
  if (rest == 0) return;
  alignas(64) float padded[kCodeGrid];
  alignas(64) uint8_t codes[kCodeGrid] = {};
  const CodedArray last = from.From(whole * block);
  std::memcpy(codes, last.codes, rest);
  DecodeBlocks({from.code, codes, last.scales}, 1, padded, meanwhile);
  std::memcpy(values + whole * block, padded, rest * sizeof(float));
}

}  // namespace optshard
