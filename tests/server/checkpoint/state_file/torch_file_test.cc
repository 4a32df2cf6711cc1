// .pt files: ours, PyTorch's own, and such as nobody should read.
#include "server/checkpoint/state_file/torch_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/state_file/pickle_reader.h"
#include "server/checkpoint/state_file/state_file.h"
#include "server/checkpoint/state_file/zip_writer.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::FakeFileSystem;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/client/golden/imports/";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class TorchFile : public ::testing::Test {
 protected:
  void Put(const std::string& bytes) {
    auto root = system_.OpenDirectory("/").value();
    root->Remove("f").IgnoreError();
    auto file = root->CreateFile("f").value();
    if (bytes.empty()) return;
    ASSERT_EQ(file->WriteAt(0, {bytes}), absl::OkStatus());
  }

  std::string Bytes() {
    std::string bytes;
    system_.Edit("f", [&](std::string& all) { bytes = all; });
    return bytes;
  }

  absl::StatusOr<std::unique_ptr<StateFile>> Open() { return StateFile::Open(system_, "/f"); }
  absl::Status Status() { return Open().status(); }

  // As the only entry of an archive that is otherwise right.
  absl::Status ReadPickled(const std::string& pickle) {
    return ReadPickle(absl::StrCat("\x80\x02", pickle)).status();
  }

  void Write(const FileDocument& document, const ZipWriterOptions& options = {}) {
    auto root = system_.OpenDirectory("/").value();
    root->Remove("f").IgnoreError();
    auto file = root->CreateFile("f").value();
    const auto source = [](size_t tensor, int64_t offset,
                           int64_t bytes) -> absl::StatusOr<absl::string_view> {
      static std::string piece;
      piece.clear();
      for (int64_t i = 0; i < bytes; ++i) {
        piece += static_cast<char>(static_cast<int64_t>(tensor) * 7 + offset + i);
      }
      return absl::string_view(piece);
    };
    ASSERT_EQ(WriteTorchFile(document, source, *file, {}, options), absl::OkStatus());
  }

  FakeFileSystem system_;
};

FileDocument Everything() {
  FileDocument document;
  document.tensors = {ContiguousTensor(TensorType::kF32, {2, 3}, 0),
                      ContiguousTensor(TensorType::kBF16, {}, 1),
                      ContiguousTensor(TensorType::kI64, {0, 4}, 2)};
  FileValue list = FileValue::List();
  for (const int64_t number : {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65536}, int64_t{-1},
                               INT64_MIN, INT64_MAX}) {
    list.elements.push_back(FileValue::Int(number));
  }
  FileValue tuple = FileValue::Tuple();
  tuple.elements = {FileValue::Number(0.1), FileValue::Number(-1e300), FileValue(),
                    FileValue::Flag(true), FileValue::Flag(false)};
  FileValue pair = FileValue::Tuple();
  pair.elements = {FileValue::Text("x"), FileValue::Text("x")};
  FileValue inner = FileValue::Dict();
  for (int64_t i = 0; i < 3; ++i) {
    inner.Add(FileValue::Int(i), FileValue::Tensor(static_cast<size_t>(i)));
  }
  document.value = FileValue::Dict();
  document.value.Add(FileValue::Text("tensors"), inner);
  document.value.Add(FileValue::Text("list"), list);
  document.value.Add(FileValue::Text("tuple"), tuple);
  document.value.Add(FileValue::Text("pair"), pair);
  document.value.Add(FileValue::Text("empty"), FileValue::Dict());
  return document;
}

std::string TextOf(const FileValue& value) {
  std::string text = absl::StrCat(static_cast<int>(value.kind), ":", value.whole, ":", value.number,
                                  ":", value.text, "(");
  for (const FileValue& element : value.elements) absl::StrAppend(&text, TextOf(element), " ");
  return text + ")";
}

TEST_F(TorchFile, Written_IsReadAgain_WithEveryValueAndByte) {
  for (const int64_t from_64_bits : {int64_t{UINT32_MAX}, int64_t{0}}) {
    SCOPED_TRACE(from_64_bits);
    const FileDocument document = Everything();
    Write(document, {from_64_bits});
    const auto file = Open();
    ASSERT_EQ(file.status(), absl::OkStatus());
    const FileDocument& read = (*file)->document();
    EXPECT_EQ(TextOf(read.value), TextOf(document.value));
    ASSERT_EQ(read.tensors.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(read.tensors[i].type, document.tensors[i].type);
      EXPECT_EQ(read.tensors[i].shape, document.tensors[i].shape);
      EXPECT_EQ(read.storages[read.tensors[i].storage].offset_bytes % 64, 0);
      std::string bytes(static_cast<size_t>(read.tensors[i].bytes()), '?');
      ASSERT_EQ((*file)->Read(read.tensors[i], absl::MakeSpan(bytes)), absl::OkStatus());
      for (size_t b = 0; b < bytes.size(); ++b) {
        ASSERT_EQ(bytes[b], static_cast<char>(7 * i + b)) << i << " " << b;
      }
    }
  }
}

TEST_F(TorchFile, OfPyTorch_HasItsValues) {
  Put(BytesOf(absl::StrCat(kGolden, "adamw.pt")));
  const auto file = Open();
  ASSERT_EQ(file.status(), absl::OkStatus());
  const FileValue& value = (*file)->document().value;
  const FileValue& group = value.Find("param_groups")->elements[0];
  EXPECT_EQ(group.Find("lr")->number, 0.001);
  EXPECT_EQ(group.Find("betas")->kind, FileKind::kTuple);
  EXPECT_EQ(group.Find("decoupled_weight_decay")->whole, 1);
  EXPECT_EQ(group.Find("foreach")->kind, FileKind::kNone);
  const FileValue& second = value.Find("state")->elements[3];
  const FileTensor& tensor =
      (*file)->document().tensors[static_cast<size_t>(second.Find("exp_avg")->whole)];
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{6, 20}));
  const FileTensor& step =
      (*file)->document().tensors[static_cast<size_t>(second.Find("step")->whole)];
  float steps = 0;
  ASSERT_EQ((*file)->Read(step, absl::MakeSpan(reinterpret_cast<char*>(&steps), sizeof(steps))),
            absl::OkStatus());
  EXPECT_EQ(steps, 2);
}

// --- Pickles by hand.

constexpr char kStorage[] =
    "((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
    "0X\x03\0\0\0cpuK\x06tQ";

std::string Tensor(const std::string& offset, const std::string& sizes,
                   const std::string& strides) {
  return absl::StrCat("ctorch._utils\n_rebuild_tensor_v2\n",
                      absl::string_view(kStorage, sizeof(kStorage) - 1), offset, sizes, strides,
                      "\x89", "ccollections\nOrderedDict\n)RtR.");
}

TEST_F(TorchFile, Tensors_LieWithinTheirStorage) {
  EXPECT_EQ(ReadPickled(Tensor("K\x01", "K\x05\x85", "K\x01\x85")), absl::OkStatus());
  EXPECT_EQ(ReadPickled(Tensor(std::string("K\0", 2), "K\x03K\x02\x86", "K\x01K\x03\x86")),
            absl::OkStatus());
  const std::string wrong[] = {
      Tensor("K\x02", "K\x05\x85", "K\x01\x85"),                              // too far
      Tensor("K\x07", std::string("K\0\x85", 3), "K\x01\x85"),                // begins outside
      Tensor("J\xff\xff\xff\xff", "K\x01\x85", "K\x01\x85"),                  // before it
      Tensor(std::string("K\0", 2), "K\x07\x85", std::string("K\0\x85", 3)),  // expanded
      Tensor(std::string("K\0", 2), "K\x02\x85", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"),
      Tensor(std::string("K\0", 2), "J\xff\xff\xff\xff\x85", "K\x01\x85"),  // negative
      Tensor(std::string("K\0", 2), "K\x02\x85", "J\xff\xff\xff\xff\x85"),  // backwards
      Tensor(std::string("K\0", 2), "K\x02\x85", ")"),
      Tensor(std::string("K\0", 2), "X\x01\0\0\0a\x85", "K\x01\x85")};
  for (const std::string& pickle : wrong) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadPickled(pickle)));
  }
}

TEST_F(TorchFile, NamesThatTensorsDoNotNeed_AreRefused_AndNothingRuns) {
  EXPECT_THAT(ReadPickled("cposix\nsystem\nX\x04\0\0\0true\x85R.").message(),
              AllOf(HasSubstr("at byte 2 of its pickle it asks for \"posix.system\""),
                    HasSubstr("nothing of it was run"), HasSubstr("state_dict()")));
  const std::string refused[] = {
      "cbuiltins\neval\n)R.",
      "cos\nsystem\n.",
      "c__builtin__\ngetattr\n.",
      "ctorch\nload\n.",
      "ctorch._utils\n_rebuild_sparse_tensor\n.",
      "ctorch\nFloatStorage2\n.",
      "cnumpy.core.multiarray\nscalar\n.",
      "ccollections\nOrderedDict\n.",  // a function among the values
      "ctorch\nFloatStorage\n)R.",     // no function
      "}}R.",                          // nor a dict
  };
  for (const std::string& pickle : refused) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadPickled(pickle))) << pickle;
  }
}

TEST_F(TorchFile, OpcodesThatTensorsDoNotNeed_AreRefusedByName) {
  EXPECT_THAT(ReadPickled("(cos\nsystem\no.").message(), HasSubstr("\"os.system\""));
  EXPECT_THAT(ReadPickled("(K\x01o.").message(), HasSubstr("at byte 5 of its pickle it has the "
                                                           "opcode OBJ"));
  EXPECT_THAT(ReadPickled("ios\nsystem\n.").message(), HasSubstr("opcode INST"));
  EXPECT_THAT(ReadPickled(")\x81.").message(), HasSubstr("opcode NEWOBJ"));
  EXPECT_THAT(ReadPickled("\x93.").message(), HasSubstr("opcode STACK_GLOBAL"));
  EXPECT_THAT(ReadPickled("\xff.").message(), HasSubstr("opcode 0xff"));
  EXPECT_THAT(ReadPickle("\x80\x04N.").status().message(), HasSubstr("protocol 4, expected 2"));
}

TEST_F(TorchFile, BrokenPickles_AreRefused) {
  const std::string broken[] = {"",
                                "N",
                                ".",
                                "NN.",
                                "(N.",
                                "t.",
                                "a.",
                                "Na.",
                                "K\x01"
                                "a.",
                                "]u.",
                                "}Ns.",
                                "}(Nu.",
                                "h\x01.",
                                "q\x01N.",
                                "R.",
                                "Q.",
                                "NQ.",
                                "(NtQ.",
                                "K",
                                "J\x01.",
                                "G.",
                                "X\xff\xff\xff\xff"
                                "a.",
                                "cos",
                                "cos\nsys",
                                "\x8a\x09.",
                                "\x85.",
                                "}NNs.",
                                "}(K\x01NK\x01Nu.",
                                "}b.",
                                "N}b.",
                                "]q\x01h\x01"
                                "a.",
                                "ctorch\nSize\nN\x85R.",
                                "c__builtin__\nset\n)R."};
  for (const std::string& pickle : broken) {
    const absl::Status status = ReadPickled(pickle);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pickle << " " << status;
    EXPECT_THAT(status.message(), HasSubstr("of its pickle")) << pickle;
  }
}

TEST_F(TorchFile, ValuesThatStandForMore_AreBounded) {
  // Each list has the former twice: 2^28 values.
  std::string chain = "(";
  chain += "]q";
  chain += '\0';
  for (char i = 0; i < 28; ++i) {
    absl::StrAppend(&chain, "](h", std::string(1, i), "h", std::string(1, i), "eq",
                    std::string(1, static_cast<char>(i + 1)));
  }
  EXPECT_THAT(ReadPickled(chain + "t.").message(), HasSubstr("more than 8388608 values"));
  EXPECT_THAT(ReadPickled(std::string(200, ']') + std::string(199, 'a') + ".").message(),
              HasSubstr("nested more than 32 deep"));
  EXPECT_THAT(ReadPickled(std::string(100000, '(')).message(), HasSubstr("too many marks"));
}

TEST_F(TorchFile, SetsOrderedDictsAndParameters_BecomePlain) {
  const auto set = ReadPickle(
      "\x80\x02"
      "c__builtin__\nset\n](K\x01K\x02"
      "e\x85R.");
  ASSERT_EQ(set.status(), absl::OkStatus());
  EXPECT_EQ(set->value.kind, FileKind::kList);
  EXPECT_EQ(set->value.elements.size(), 2u);
  const auto dict = ReadPickle(
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(K\x01K\x02u}b.");
  ASSERT_EQ(dict.status(), absl::OkStatus());
  EXPECT_EQ(dict->value.elements[1].whole, 2);
  const auto size = ReadPickle(
      "\x80\x02"
      "ctorch\nSize\nK\x01\x85\x85R.");
  ASSERT_EQ(size.status(), absl::OkStatus());
  EXPECT_EQ(size->value.kind, FileKind::kTuple);
}

// --- Files.

TEST_F(TorchFile, CutOffAnywhere_IsRefused) {
  Write(Everything());
  const std::string whole = Bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    Put(whole.substr(0, size));
    ASSERT_TRUE(absl::IsInvalidArgument(Status())) << size << " " << Status();
  }
}

TEST_F(TorchFile, DamagedPickleOrTensor_IsDataLoss) {
  Write(Everything());
  const std::string whole = Bytes();
  std::string flipped = whole;
  flipped[whole.find("tensors")] ^= 1;
  Put(flipped);
  EXPECT_TRUE(absl::IsDataLoss(Status())) << Status();
  flipped = whole;
  const size_t data = whole.find("archive/data/0");
  flipped[(data + 64) / 64 * 64 + 1] ^= 1;
  Put(flipped);
  const auto file = Open();
  ASSERT_EQ(file.status(), absl::OkStatus());
  std::string bytes(24, '\0');
  const absl::Status read = (*file)->Read((*file)->document().tensors[0], absl::MakeSpan(bytes));
  EXPECT_TRUE(absl::IsDataLoss(read)) << read;
  EXPECT_THAT(read.message(), HasSubstr("archive/data/0"));
}

TEST_F(TorchFile, OtherKindsOfFiles_AreRefused_SayingWhatToDo) {
  const std::string golden = BytesOf(absl::StrCat(kGolden, "adamw.pt"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string bytes = golden;
    for (size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; at += to.size()) {
      bytes.replace(at, to.size(), to);
    }
    Put(bytes);
    return std::string(Status().message());
  };
  Put("\x80\x02\x8a\x0al\xfc\x9c"
      "F\xf9 j\xa8P\x19.");
  EXPECT_THAT(Status().message(), AllOf(HasSubstr("bare pickle"), HasSubstr("1.6 or newer")));
  Put(std::string(257, 'x') + "ustar" + std::string(300, '\0'));
  EXPECT_THAT(Status().message(), HasSubstr("tar archive"));
  Put("hello");
  EXPECT_THAT(Status().message(), HasSubstr("no file of torch.save"));
  EXPECT_THAT(changed("data.pkl", "dat0.pkl"), HasSubstr("no NAME/data.pkl"));
  EXPECT_THAT(changed("data/3", "dota/3"), HasSubstr("is not there"));

  std::string bytes = golden;
  const auto set_central = [&](size_t offset, char value) {
    bytes = golden;
    bytes[bytes.find("PK\x01\x02") + offset] = value;
    Put(bytes);
    return std::string(Status().message());
  };
  EXPECT_THAT(set_central(8, 1), HasSubstr("encrypted"));
  EXPECT_THAT(set_central(10, 8), HasSubstr("compressed"));
}

TEST_F(TorchFile, OtherByteOrdersAndVersions_AreRefused) {
  const auto with = [this](const std::string& name, const std::string& content) {
    auto root = system_.OpenDirectory("/").value();
    root->Remove("f").IgnoreError();
    auto file = root->CreateFile("f").value();
    ZipWriter zip(*file);
    EXPECT_EQ(zip.Write("a/data.pkl", "\x80\x02N."), absl::OkStatus());
    EXPECT_EQ(zip.Write(name, content), absl::OkStatus());
    EXPECT_EQ(zip.Finish(), absl::OkStatus());
    return Status();
  };
  EXPECT_EQ(with("a/byteorder", "little"), absl::OkStatus());
  EXPECT_THAT(with("a/byteorder", "big").message(),
              AllOf(HasSubstr("byteorder is \"big\""), HasSubstr("expected little")));
  EXPECT_EQ(with("a/version", "3\n"), absl::OkStatus());
  EXPECT_THAT(with("a/version", "11").message(), HasSubstr("version \"11\", expected 1 to 10"));
  EXPECT_THAT(with("b/data.pkl", "\x80\x02N.").message(), HasSubstr("two pickles"));
  EXPECT_THAT(with("a/data.pkl", "\x80\x02N.").message(), HasSubstr("is there twice"));
}

}  // namespace
}  // namespace optshard
