#include "server/checkpoint/safetensors.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/strict_json.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Length(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string FileOf(absl::string_view header, size_t data_bytes) {
  return absl::StrCat(Length(header.size()), header, std::string(data_bytes, 'd'));
}

absl::StatusOr<SafetensorsHeader> ReadBytes(absl::string_view bytes) {
  testing::FakeFileSystem system;
  auto file = system.OpenDirectory("/").value()->CreateFile("t.safetensors").value();
  EXPECT_EQ(file->WriteAt(0, {bytes}), absl::OkStatus());
  return ReadSafetensorsHeader(*file);
}

struct Wrong {
  std::string name;
  std::string header;
  size_t data_bytes;
  std::string message;
};

class SafetensorsBad : public ::testing::TestWithParam<Wrong> {};

TEST_P(SafetensorsBad, File_IsRefusedWithItsReason) {
  const auto header = ReadBytes(FileOf(GetParam().header, GetParam().data_bytes));
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(header.status().message()),
      AllOf(HasSubstr("/t.safetensors is not a safetensors file"), HasSubstr(GetParam().message)));
  EXPECT_LT(header.status().message().size(), 1000u);
  EXPECT_FALSE(HasControlCharacters(header.status().message()));
}

std::string F32(absl::string_view shape, absl::string_view offsets) {
  return absl::StrCat("{\"a\":{\"dtype\":\"F32\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}}");
}
std::string Two(absl::string_view a, absl::string_view b) {
  return absl::StrCat("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":", a,
                      "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":", b, "}}");
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsBad,
    ::testing::Values(
        Wrong{"NoObject", "[1]", 0, "does not begin with \"{\""},
        Wrong{"Empty", "", 0, "does not begin with \"{\""},
        Wrong{"LeadingSpace", " {}", 0, "does not begin with \"{\""},
        Wrong{"NoJson", "{\"a\":", 0, "not JSON: at byte"},
        Wrong{"TwoValues", "{} {}", 0, "not JSON: at byte"},
        Wrong{"Nul", std::string("{}\0x", 4), 0, "at byte 2: a NUL byte"},
        Wrong{"NotUtf8", "{\"\xff\":1}", 0, "not JSON: at byte"},
        Wrong{"LongToken", absl::StrCat("{", std::string(100000, 'x'), "}"), 0, "not JSON"},
        Wrong{"Deep", absl::StrCat("{\"a\":", std::string(5000, '['), std::string(5000, ']'), "}"),
              0, "more than 16 levels deep"},
        Wrong{"NameTwice", "{\"a\":1,\"a\":1}", 0, "the name \"a\" is twice"},
        Wrong{"KeyTwice", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "is twice"},
        Wrong{"NoTensor", "{\"a\":3}", 0, "tensor \"a\" is number, not an object"},
        Wrong{"EmptyName", "{\"\":{}}", 0, "name is empty"},
        Wrong{"ControlName", "{\"a\\u001bb\":{}}", 0, "tensor \"a%1Bb\": its name has control"},
        Wrong{"C1Name", "{\"a\\u009bb\":{}}", 0, "its name has control"},
        Wrong{"LongName", absl::StrCat("{\"", std::string(5000, 'n'), "\":{}}"), 0,
              "its name has 5000 bytes"},
        Wrong{"NoDtype", "{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4,
              "tensor \"a\".dtype: it is missing"},
        Wrong{"Dtype", "{\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
              "its dtype is \"F4\", expected one of BOOL, U8"},
        Wrong{"NoShape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4,
              ".shape: it is missing, expected a list"},
        Wrong{"ShapeText", F32("\"x\"", "[0,4]"), 4, ".shape: it is string"},
        Wrong{"ShapeNegative", F32("[-1]", "[0,4]"), 4, ".shape: it has -1"},
        Wrong{"ShapeFraction", F32("[1.5]", "[0,4]"), 4, ".shape: it has 1.5"},
        Wrong{"ShapeHuge", F32("[18446744073709551615]", "[0,4]"), 4, ".shape: it has 184467"},
        Wrong{"ShapeOverflow", F32("[4294967296,4294967296]", "[0,4]"), 4,
              "more elements than a file can have bytes"},
        Wrong{"ShapeBytesOverflow", F32("[4611686018427387905]", "[0,4]"), 4,
              "more elements than a file can have bytes"},
        Wrong{"ShapeLong",
              F32(absl::StrCat("[", absl::StrJoin(std::vector<int>(65, 1), ","), "]"), "[0,4]"), 4,
              "it has 65 elements, at most 64"},
        Wrong{"NoOffsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4,
              ".data_offsets: it is missing"},
        Wrong{"OneOffset", F32("[1]", "[4]"), 4, "data_offsets are [4]"},
        Wrong{"ThreeOffsets", F32("[1]", "[0,4,8]"), 4, "it has 3 elements, at most 2"},
        Wrong{"OffsetsBackwards", F32("[1]", "[4,0]"), 4, "data_offsets are [4,0]"},
        Wrong{"OffsetNegative", F32("[1]", "[-4,0]"), 4, ".data_offsets: it has -4"},
        Wrong{"OffsetHuge", F32("[1]", "[0,9223372036854775807]"), 4,
              "give 9223372036854775807 bytes, its shape and dtype 4"},
        Wrong{"BytesOfShape", F32("[2]", "[0,4]"), 4,
              "data_offsets give 4 bytes, its shape and dtype 8"},
        Wrong{"Overlap", Two("[0,4]", "[2,6]"), 6, "tensor \"b\" begins at byte 2 of the data"},
        Wrong{"Same", Two("[0,4]", "[0,4]"), 4, "begins at byte 0 of the data"},
        Wrong{"Gap", Two("[0,4]", "[5,9]"), 9, "bytes 4 to 5 of the data, before tensor \"b\""},
        Wrong{"GapFirst", F32("[1]", "[4,8]"), 8, "bytes 0 to 4 of the data"},
        Wrong{"CutOff", F32("[1]", "[0,4]"), 3, "the file is cut off: tensor \"a\""},
        Wrong{"TooLong", F32("[1]", "[0,4]"), 6, "of which the last 2 belong to no tensor"},
        Wrong{"NoTensors", "{}", 1, "of which the last 1 belong to no tensor"},
        Wrong{"MetadataList", "{\"__metadata__\":[]}", 0, "__metadata__ is array"},
        Wrong{"MetadataNumber", "{\"__metadata__\":{\"k\\n\":1}}", 0,
              "__metadata__ has number under \"k%0A\""}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsRead_Lengths, AreChecked) {
  const auto message = [](absl::string_view bytes) {
    return std::string(ReadBytes(bytes).status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("it has 0 bytes, fewer than the length"));
  EXPECT_THAT(message("1234567"), HasSubstr("it has 7 bytes"));
  EXPECT_THAT(message(Length(3) + "{}"), HasSubstr("cut off within its header of 3 bytes"));
  EXPECT_THAT(message(Length(100'000'001)), HasSubstr("100000001 bytes, at most 100000000"));
  EXPECT_THAT(message(Length(~uint64_t{0}) + "{}"), HasSubstr("18446744073709551615 bytes"));
}

TEST(SafetensorsRead_FileOfAnother, IsUnderstood) {
  // As the Python library writes {"b": zeros(2, dtype=float16), "a": zeros((), dtype=int64)} with
  // metadata; fields that it does not know are nobody's mistake.
  const auto header = ReadBytes(
      FileOf("{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"I64\",\"shape\":[],"
             "\"data_offsets\":[0,8],\"later\":[1]},\"b\":{\"dtype\":\"F16\",\"shape\":[2,0],"
             "\"data_offsets\":[8,8]}}   ",
             8));
  ASSERT_EQ(header.status(), absl::OkStatus());
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].type, TensorType::kI64);
  EXPECT_EQ(header->tensors[0].bytes, 8);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(header->data_bytes(), 8);
}

SafetensorsTensor Tensor(std::string name, TensorType type, std::vector<int64_t> shape) {
  SafetensorsTensor tensor;
  tensor.name = std::move(name);
  tensor.type = type;
  tensor.shape = std::move(shape);
  return tensor;
}

TEST(SafetensorsLayOut_EveryType, IsReadBackAligned) {
  std::vector<SafetensorsTensor> tensors;
  for (const char* name : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16",
                           "I32", "U32", "F32", "I64", "U64", "F64"}) {
    const auto type = TensorTypeNamed(name);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_EQ(NameOf(*type), name);
    tensors.push_back(Tensor(absl::StrCat("t/", name, " \"\\ \u00e4"), *type, {3}));
  }
  tensors.push_back(Tensor("scalar", TensorType::kF64, {}));
  tensors.push_back(Tensor("none", TensorType::kF64, {0, 5}));
  const auto layout = LayOutSafetensors(tensors, {{"k\n", "v\""}, {"l", ""}}).value();
  EXPECT_EQ(layout.header.data_begin_bytes % 64, 0);
  EXPECT_EQ(layout.header.data_begin_bytes, static_cast<int64_t>(layout.bytes.size()));

  const auto back = ReadBytes(absl::StrCat(
      layout.bytes, std::string(static_cast<size_t>(layout.header.data_bytes()), 'd')));
  ASSERT_EQ(back.status(), absl::OkStatus());
  EXPECT_EQ(back->metadata, layout.header.metadata);
  EXPECT_EQ(back->file_bytes(), layout.header.file_bytes());
  ASSERT_EQ(back->tensors.size(), tensors.size());
  for (const SafetensorsTensor& tensor : back->tensors) {
    EXPECT_EQ(tensor.offset_bytes % SizeOf(tensor.type), 0) << tensor.name;
    bool found = false;
    for (const SafetensorsTensor& laid : layout.header.tensors) {
      if (laid.name != tensor.name) continue;
      found = true;
      EXPECT_EQ(laid.offset_bytes, tensor.offset_bytes);
      EXPECT_EQ(laid.shape, tensor.shape);
      EXPECT_EQ(laid.type, tensor.type);
    }
    EXPECT_TRUE(found) << tensor.name;
  }
}

TEST(SafetensorsLayOut_NoTensors, IsAFile) {
  const auto layout = LayOutSafetensors({}, {}).value();
  EXPECT_EQ(ReadBytes(layout.bytes).status(), absl::OkStatus());
}

TEST(SafetensorsLayOut_WhatCannotBe, IsRefused) {
  const auto message = [](std::vector<SafetensorsTensor> tensors) {
    const absl::Status status = LayOutSafetensors(std::move(tensors), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const TensorType f32 = TensorType::kF32;
  EXPECT_THAT(message({Tensor("a", f32, {}), Tensor("a", f32, {})}), HasSubstr("is there twice"));
  EXPECT_THAT(message({Tensor("__metadata__", f32, {})}), HasSubstr("is there twice"));
  EXPECT_THAT(message({Tensor("", f32, {})}), HasSubstr("empty"));
  EXPECT_THAT(message({Tensor("a\tb", f32, {})}), HasSubstr("control characters"));
  EXPECT_THAT(message({Tensor("a\xff", f32, {})}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({Tensor("a", f32, {INT64_MAX, 2})}), HasSubstr("more elements"));
  EXPECT_THAT(message({Tensor("a", TensorType::kU8, {INT64_MAX})}), HasSubstr("too large"));
}

TEST(StrictJson_Values, AreBuiltAsTheyStand) {
  const auto json = ParseStrictJson("{\"a\":[1,-2,2.5,true,null,{\"b\":\"c\"}],\"d\":{}}").value();
  EXPECT_EQ(json.dump(), "{\"a\":[1,-2,2.5,true,null,{\"b\":\"c\"}],\"d\":{}}");
  EXPECT_EQ(ParseStrictJson("7").value(), 7);
  EXPECT_FALSE(ParseStrictJson("").ok());
  EXPECT_FALSE(ParseStrictJson("1e999").ok());
  EXPECT_FALSE(ParseStrictJson("[1,]").ok());
  EXPECT_FALSE(ParseStrictJson("// comment\n1").ok());
  EXPECT_FALSE(ParseStrictJson("\xef\xbb\xbf"
                               "1")
                   .ok());
}

}  // namespace
}  // namespace optshard
