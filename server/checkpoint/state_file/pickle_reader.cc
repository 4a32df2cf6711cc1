#include "server/checkpoint/state_file/pickle_reader.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint/state_file/pickle_names.h"
#include "server/checkpoint/state_file/pickle_opcode_name.h"
#include "server/checkpoint/state_file/pickle_tensors.h"
#include "server/checkpoint/state_file/pickle_tree.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

using Kind = PickleNode::Kind;

constexpr size_t kMostNameBytes = 200;
constexpr size_t kMostMarks = 128;  // of values nested as deep as there may be

enum class Callable : uint8_t { kOrderedDict, kSet, kSize, kRebuildTensor, kRebuildParameter };

struct KnownName {
  absl::string_view name;  // module, a space, name
  Callable callable;
};
constexpr std::array<KnownName, 6> kKnownNames = {{
    {pickle::kOrderedDict, Callable::kOrderedDict},
    {"__builtin__ set", Callable::kSet},
    {"builtins set", Callable::kSet},
    {"torch Size", Callable::kSize},
    {pickle::kRebuildTensor, Callable::kRebuildTensor},
    {pickle::kRebuildParameter, Callable::kRebuildParameter},
}};

class Interpreter {
 public:
  explicit Interpreter(absl::string_view pickle) : pickle_(pickle) {}

  absl::StatusOr<FileDocument> Run() {
    if (static_cast<int64_t>(pickle_.size()) > kMaxPickleBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pickle has ", pickle_.size(), " bytes, at most ", kMaxPickleBytes));
    }
    while (!stopped_ && error_.ok()) Step();
    if (!error_.ok()) return error_;
    auto tree = PickleTree(nodes_, stack_.front());
    if (!tree.ok()) Fail(tree.status().message());
    if (!error_.ok()) return error_;
    FileDocument document;
    document.value = *std::move(tree);
    document.tensors = tensors_.TakeTensors();
    document.storages = tensors_.TakeStorages();
    return document;
  }

 private:
  // --- Errors: the first one stays.

  void Fail(absl::string_view what) {
    if (!error_.ok()) return;
    error_ = absl::InvalidArgumentError(absl::StrCat("at byte ", at_, " of its pickle ", what));
  }

  // --- The program's bytes.

  absl::string_view Take(uint64_t bytes) {
    if (bytes > pickle_.size() - next_) {
      Fail("it is cut off");
      return {};
    }
    const absl::string_view taken = pickle_.substr(next_, bytes);
    next_ += bytes;
    return taken;
  }

  uint64_t TakeNumber(int bytes) {
    const absl::string_view taken = Take(static_cast<uint64_t>(bytes));
    uint64_t number = 0;
    for (size_t i = taken.size(); i-- > 0;) {
      number = number << 8 | static_cast<uint8_t>(taken[i]);
    }
    return number;
  }

  absl::string_view TakeLine() {
    const size_t end = pickle_.substr(next_, kMostNameBytes).find('\n');
    if (end == absl::string_view::npos) {
      Fail("a name has no end");
      return {};
    }
    const absl::string_view line = Take(end);
    ++next_;
    return line;
  }

  // --- The stack. What is missing reads as a node None.

  uint32_t Push(PickleNode node) {
    if (static_cast<int64_t>(nodes_.size()) >= kMaxPickleValues) {
      Fail(absl::StrCat("it makes more than ", kMaxPickleValues, " values"));
      return 0;
    }
    nodes_.push_back(std::move(node));
    stack_.push_back(static_cast<uint32_t>(nodes_.size() - 1));
    return stack_.back();
  }

  void Push(Kind kind, int64_t whole = 0) {
    PickleNode node;
    node.kind = kind;
    node.whole = whole;
    Push(std::move(node));
  }

  // Not below a mark.
  bool Has(size_t count) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() >= floor + count) return true;
    Fail("it takes a value where there is none");
    return false;
  }

  uint32_t Pop() {
    if (!Has(1)) return 0;
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }

  // Takes all above the last mark, and the mark.
  std::vector<uint32_t> PopToMark() {
    if (marks_.empty()) {
      Fail("it takes values from a mark that is not there");
      return {};
    }
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<uint32_t> taken(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return taken;
  }

  void PushTuple(std::vector<uint32_t> elements) {
    PickleNode node;
    node.kind = Kind::kTuple;
    node.elements = std::move(elements);
    Push(std::move(node));
  }

  void PushTuple(size_t size) {
    if (!Has(size)) return;
    const auto from = stack_.end() - static_cast<std::ptrdiff_t>(size);
    std::vector<uint32_t> elements(from, stack_.end());
    stack_.erase(from, stack_.end());
    PushTuple(std::move(elements));
  }

  // The value on top, which has to be of that kind; null otherwise.
  PickleNode* Top(Kind kind) {
    if (!Has(1)) return nullptr;
    PickleNode& top = nodes_[stack_.back()];
    if (top.kind == kind) return &top;
    Fail(absl::StrCat("it puts values into ", NameOf(top.kind), ", expected ", NameOf(kind)));
    return nullptr;
  }

  void AddTo(Kind kind, const std::vector<uint32_t>& elements) {
    if (!error_.ok()) return;
    if (kind == Kind::kDict && elements.size() % 2 != 0) {
      return Fail("it sets a key without a value");
    }
    PickleNode* const to = Top(kind);
    if (to == nullptr) return;
    to->elements.insert(to->elements.end(), elements.begin(), elements.end());
  }

  // --- Opcodes.

  void Step() {
    at_ = next_;
    const absl::string_view opcode = Take(1);
    if (!error_.ok()) return;
    Run(static_cast<uint8_t>(opcode[0]));
  }

  void Run(uint8_t opcode) {
    switch (opcode) {
      case pickle::kProto: {
        const auto protocol = static_cast<char>(TakeNumber(1));
        if (protocol != kPickleProtocol) {
          Fail(absl::StrCat("it is of protocol ", static_cast<int>(protocol),
                            ", expected 2: save it again with torch.save's own pickle_protocol"));
        }
        return;
      }
      case pickle::kStop:
        stopped_ = true;
        if (stack_.size() != 1 || !marks_.empty()) Fail("it ends with more than one value or none");
        return;
      case pickle::kMark:
        if (marks_.size() >= kMostMarks) return Fail("it has too many marks");
        return marks_.push_back(stack_.size());
      case pickle::kNone:
        return Push(Kind::kNone);
      case pickle::kNewTrue:
        return Push(Kind::kFlag, 1);
      case pickle::kNewFalse:
        return Push(Kind::kFlag, 0);
      case pickle::kBinInt:
        return Push(Kind::kInt, static_cast<int32_t>(static_cast<uint32_t>(TakeNumber(4))));
      case pickle::kBinInt1:
        return Push(Kind::kInt, static_cast<int64_t>(TakeNumber(1)));
      case pickle::kBinInt2:
        return Push(Kind::kInt, static_cast<int64_t>(TakeNumber(2)));
      case pickle::kLong1:
        return RunLong();
      case pickle::kBinFloat:
        return RunFloat();
      case pickle::kBinUnicode:
        return RunText();
      case pickle::kEmptyList:
        return Push(Kind::kList);
      case pickle::kEmptyDict:
        return Push(Kind::kDict);
      case pickle::kEmptyTuple:
        return PushTuple(size_t{0});
      case pickle::kTuple1:
        return PushTuple(size_t{1});
      case pickle::kTuple2:
        return PushTuple(size_t{2});
      case pickle::kTuple3:
        return PushTuple(size_t{3});
      case pickle::kTuple:
        return PushTuple(PopToMark());
      case pickle::kAppend:
        return AddTo(Kind::kList, {Pop()});
      case pickle::kAppends:
        return AddTo(Kind::kList, PopToMark());
      case pickle::kSetItem: {
        const uint32_t value = Pop();
        return AddTo(Kind::kDict, {Pop(), value});
      }
      case pickle::kSetItems:
        return AddTo(Kind::kDict, PopToMark());
      case pickle::kBuild:
        // What state_dict() of a module has beside its items: versions of its layers.
        Pop();
        Top(Kind::kDict);
        return;
      default:
        return RunNamed(opcode);
    }
  }

  void RunNamed(uint8_t opcode) {
    switch (opcode) {
      case pickle::kBinPut:
        return Remember(static_cast<uint32_t>(TakeNumber(1)));
      case pickle::kLongBinPut:
        return Remember(static_cast<uint32_t>(TakeNumber(4)));
      case pickle::kBinGet:
        return Recall(static_cast<uint32_t>(TakeNumber(1)));
      case pickle::kLongBinGet:
        return Recall(static_cast<uint32_t>(TakeNumber(4)));
      case pickle::kGlobal:
        return RunGlobal();
      case pickle::kReduce:
        return RunReduce();
      case pickle::kBinPersId:
        return RunStorage();
      default:
        return Fail(absl::StrCat("it has the opcode ", PickleOpcodeName(opcode),
                                 ", which tensors do not need; ", kSavePlainValues));
    }
  }

  void RunLong() {
    const uint64_t bytes = TakeNumber(1);
    if (bytes > sizeof(int64_t)) {
      return Fail(absl::StrCat("it has an int of ", bytes, " bytes, at most 8"));
    }
    uint64_t number = TakeNumber(static_cast<int>(bytes));
    if (bytes > 0 && bytes < 8 && (number >> (8 * bytes - 1) & 1) != 0) {
      number |= ~uint64_t{0} << (8 * bytes);
    }
    Push(Kind::kInt, static_cast<int64_t>(number));
  }

  void RunFloat() {
    uint64_t bits = 0;
    for (const char byte : Take(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
    PickleNode node;
    node.kind = Kind::kNumber;
    std::memcpy(&node.number, &bits, sizeof(bits));
    Push(std::move(node));
  }

  void RunText() {
    PickleNode node;
    node.kind = Kind::kText;
    node.text = Take(TakeNumber(4));
    if (!JsonQuoted(node.text).ok()) return Fail("a text is not UTF-8");
    Push(std::move(node));
  }

  void Remember(uint32_t index) {
    if (Has(1)) memo_[index] = stack_.back();
  }

  void Recall(uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) {
      return Fail(absl::StrCat("it recalls value ", index, ", which it has not stored"));
    }
    stack_.push_back(found->second);
  }

  void RunGlobal() {
    const absl::string_view module = TakeLine();
    const absl::string_view name = TakeLine();
    if (!error_.ok()) return;
    const std::string whole = absl::StrCat(module, " ", name);
    for (const KnownName& known : kKnownNames) {
      if (known.name == whole) {
        return Push(Kind::kCallable, static_cast<int64_t>(known.callable));
      }
    }
    if (module == "torch") {
      for (const pickle::StorageClass& storage : pickle::kStorageClasses) {
        if (storage.name == name) {
          return Push(Kind::kStorageType, static_cast<int64_t>(storage.type));
        }
      }
    }
    Fail(absl::StrCat("it asks for \"", absl::CHexEscape(module), ".", absl::CHexEscape(name),
                      "\", which is no part of tensors, numbers, texts, dicts or lists; ",
                      kSavePlainValues));
  }

  // --- Calls, all of which are done here.

  void RunReduce() {
    if (!Has(2)) return;
    const PickleNode arguments = nodes_[Pop()];
    const PickleNode callable = nodes_[Pop()];
    if (callable.kind != Kind::kCallable || arguments.kind != Kind::kTuple) {
      return Fail(absl::StrCat("it calls ", NameOf(callable.kind), " with ", NameOf(arguments.kind),
                               "; ", kSavePlainValues));
    }
    const std::vector<uint32_t>& given = arguments.elements;
    switch (static_cast<Callable>(callable.whole)) {
      case Callable::kOrderedDict:
        if (!given.empty()) return Fail("it makes an ordered dict of something");
        return Push(Kind::kDict);
      case Callable::kSet:
        return Convert(given, Kind::kList, Kind::kList);
      case Callable::kSize:
        return Convert(given, Kind::kTuple, Kind::kTuple);
      case Callable::kRebuildTensor:
        return RebuildTensor(given);
      case Callable::kRebuildParameter:
        if (given.size() != 3 || nodes_[given[0]].kind != Kind::kTensor) {
          return Fail("it makes a parameter of something that is no tensor");
        }
        return Push(Kind::kTensor, nodes_[given[0]].whole);
    }
  }

  void Convert(const std::vector<uint32_t>& given, Kind from, Kind to) {
    if (given.size() != 1 || nodes_[given[0]].kind != from) {
      return Fail(absl::StrCat("it makes a set or size of something else than ", NameOf(from)));
    }
    PickleNode node;
    node.kind = to;
    node.elements = nodes_[given[0]].elements;
    copied_ += static_cast<int64_t>(node.elements.size());
    if (copied_ > kMaxPickleValues) return Fail("it has too many sets and sizes");
    Push(std::move(node));
  }

  void RunStorage() {
    const uint32_t id = Pop();
    if (!error_.ok()) return;
    const auto storage = tensors_.AddStorage(nodes_, nodes_[id]);
    if (!storage.ok()) return Fail(storage.status().message());
    Push(Kind::kStorage, static_cast<int64_t>(*storage));
  }

  void RebuildTensor(const std::vector<uint32_t>& given) {
    const auto tensor = tensors_.AddTensor(nodes_, given);
    if (!tensor.ok()) return Fail(tensor.status().message());
    Push(Kind::kTensor, static_cast<int64_t>(*tensor));
  }

  const absl::string_view pickle_;
  size_t at_ = 0;  // of the opcode that runs
  size_t next_ = 0;
  bool stopped_ = false;
  absl::Status error_;
  std::vector<PickleNode> nodes_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  absl::flat_hash_map<uint32_t, uint32_t> memo_;
  PickleTensors tensors_;
  int64_t copied_ = 0;
};

}  // namespace

absl::StatusOr<FileDocument> ReadPickle(absl::string_view pickle) {
  return Interpreter(pickle).Run();
}

}  // namespace optshard
