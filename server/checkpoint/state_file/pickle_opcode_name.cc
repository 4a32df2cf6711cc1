#include "server/checkpoint/state_file/pickle_opcode_name.h"

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

struct NamedOpcode {
  uint8_t code;
  const char* name;
};
// clang-format off
constexpr NamedOpcode kNamed[] = {
    {'0', "POP"}, {'1', "POP_MARK"}, {'2', "DUP"}, {'F', "FLOAT"}, {'I', "INT"}, {'L', "LONG"},
    {'P', "PERSID"}, {'S', "STRING"}, {'T', "BINSTRING"}, {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"}, {'B', "BINBYTES"}, {'C', "SHORT_BINBYTES"}, {'d', "DICT"}, {'g', "GET"},
    {'i', "INST"}, {'l', "LIST"}, {'o', "OBJ"}, {'p', "PUT"}, {0x81, "NEWOBJ"}, {0x82, "EXT1"},
    {0x83, "EXT2"}, {0x84, "EXT4"}, {0x8b, "LONG4"}, {0x8c, "SHORT_BINUNICODE"},
    {0x8d, "BINUNICODE8"}, {0x8e, "BINBYTES8"}, {0x8f, "EMPTY_SET"}, {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"}, {0x92, "NEWOBJ_EX"}, {0x93, "STACK_GLOBAL"}, {0x94, "MEMOIZE"},
    {0x95, "FRAME"}, {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
};
// clang-format on

}  // namespace

std::string PickleOpcodeName(uint8_t opcode) {
  for (const NamedOpcode& named : kNamed) {
    if (named.code == opcode) return named.name;
  }
  return absl::StrFormat("0x%02x", opcode);
}

}  // namespace optshard
