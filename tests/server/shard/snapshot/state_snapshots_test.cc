#include "server/shard/snapshot/state_snapshots.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

using BlockState = StateSnapshot::BlockState;

constexpr int kBlocks = 6;
constexpr int kWords = 300;
constexpr int64_t kPlenty = 1 << 20;

// Writes its number into all words of a block, block by block, as a step does.
class FakeStore {
 public:
  FakeStore() : words_(size_t{kBlocks} * kWords), sequences_(kBlocks) {
    std::vector<MemoryBlock> blocks(kBlocks);
    for (int b = 0; b < kBlocks; ++b) {
      // Two ranges, the second one of an odd size.
      const char* const first = reinterpret_cast<const char*>(&words_[size_t{kWords} * b]);
      blocks[b] = {{first, 800}, {first + 800, kWords * 4 - 800}};
    }
    snapshots_ = std::make_unique<StateSnapshots>(std::move(blocks));
  }

  // As `Write`, a hundred words at a time. The last ones are not announced.
  void WriteInPieces(int block, uint32_t value) {
    constexpr int kPiece = 100;
    std::atomic<uint32_t>* const words = &words_[size_t{kWords} * block];
    const auto announce = [&] {
      const char* const first = reinterpret_cast<const char*>(words);
      return std::vector<MemoryRange>{{first + 400, 400}, {first, 400}};
    };
    snapshots_->Write(block, sequences_[block], announce, [&](const BlockPieces* pieces) {
      for (int begin = 0; begin < kWords; begin += kPiece) {
        if (pieces != nullptr && begin < 200) pieces->Before(words + begin, 400);
        for (int w = begin; w < begin + kPiece; ++w) {
          words[w].store(value, std::memory_order_relaxed);
        }
      }
    });
    sequences_[block].fetch_add(1, std::memory_order_release);
  }

  void Write(int block, uint32_t value) {
    snapshots_->BeginWrite(block, sequences_[block]);
    for (int w = 0; w < kWords; ++w) {
      words_[block * kWords + w].store(value, std::memory_order_relaxed);
    }
    sequences_[block].fetch_add(1, std::memory_order_release);
  }

  StateSnapshots& snapshots() { return *snapshots_; }
  uint64_t sequence(int block) const { return sequences_[block].load(); }

 private:
  std::vector<std::atomic<uint32_t>> words_;
  std::vector<std::atomic<uint64_t>> sequences_;
  std::unique_ptr<StateSnapshots> snapshots_;
};

// All words of the block, read while they may be written.
std::vector<uint32_t> RawWords(const StateSnapshot& snapshot, int block) {
  std::vector<uint32_t> words;
  for (int range = 0; range < 2; ++range) {
    const int count = range == 0 ? 200 : kWords - 200;
    const auto* from = reinterpret_cast<const std::atomic<uint32_t>*>(snapshot.At(block, range));
    for (int w = 0; w < count; ++w) words.push_back(from[w].load(std::memory_order_relaxed));
  }
  return words;
}

std::vector<uint32_t> WordsOf(const StateSnapshot& snapshot, int block) {
  while (true) {
    const bool was_live = snapshot.state(block) == BlockState::kLive;
    std::vector<uint32_t> words = RawWords(snapshot, block);
    if (!was_live || snapshot.state(block) == BlockState::kLive) return words;
  }
}

std::shared_ptr<StateSnapshot> Opened(FakeStore& store, bool keep_copies) {
  SnapshotMemory::Piece copies;
  if (keep_copies) copies = *(*SnapshotMemory::Create({kPlenty}))->Take(store.snapshots().bytes());
  auto snapshot = store.snapshots().Prepare(std::move(copies));
  store.snapshots().Open(snapshot);
  return snapshot;
}

TEST(StateSnapshotsTest, BlocksThatAreWritten_AreCopiedBefore) {
  FakeStore store;
  for (int b = 0; b < kBlocks; ++b) store.Write(b, 7);
  const auto snapshot = Opened(store, true);
  store.Write(2, 8);
  store.Write(2, 9);
  for (int b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(snapshot->state(b), b == 2 ? BlockState::kCopied : BlockState::kLive);
    EXPECT_THAT(WordsOf(*snapshot, b), ::testing::Each(7));
  }
}

TEST(StateSnapshotsTest, BlocksThatAreWrittenInPieces_AreCopiedBefore) {
  FakeStore store;
  for (int b = 0; b < kBlocks; ++b) store.WriteInPieces(b, 7);
  const auto snapshot = Opened(store, true);
  store.WriteInPieces(2, 8);
  store.WriteInPieces(2, 9);
  for (int b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(snapshot->state(b), b == 2 ? BlockState::kCopied : BlockState::kLive);
    EXPECT_THAT(WordsOf(*snapshot, b), ::testing::Each(7));
  }
  const auto without_memory = Opened(store, false);
  store.WriteInPieces(2, 10);
  EXPECT_EQ(without_memory->state(2), BlockState::kLost);
}

// Three ranges of several chunks each, written in pieces that begin and end anywhere. The second
// one is not announced, and the third one announced and not written.
TEST(StateSnapshotsTest, PiecesOfManyChunks_AreCopiedBeforeEach) {
  constexpr size_t kBytes = 700'001;
  std::vector<std::vector<char>> ranges(3, std::vector<char>(kBytes, 'a'));
  MemoryBlock block;
  for (const std::vector<char>& range : ranges) block.push_back({range.data(), kBytes});
  StateSnapshots snapshots({block});
  const auto snapshot =
      snapshots.Prepare(*(*SnapshotMemory::Create({4 * kBytes}))->Take(snapshots.bytes()));
  snapshots.Open(snapshot);
  std::atomic<uint64_t> sequence{0};
  const auto announce = [&] {
    const char* const first = ranges[0].data();
    std::vector<MemoryRange> announced = {
        {ranges[2].data(), kBytes}, {first + 300'000, kBytes - 300'000}, {first, 300'000}};
    return announced;
  };
  snapshots.Write(0, sequence, announce, [&](const BlockPieces* pieces) {
    ASSERT_NE(pieces, nullptr);
    EXPECT_EQ(sequence.load(), 1);
    std::fill(ranges[1].begin(), ranges[1].end(), 'b');
    for (size_t begin = 0; begin < kBytes; begin += 99'999) {
      const size_t bytes = std::min<size_t>(99'999, kBytes - begin);
      pieces->Before(&ranges[0][begin], bytes);
      std::fill_n(ranges[0].begin() + begin, bytes, 'b');
    }
  });
  std::fill(ranges[2].begin(), ranges[2].end(), 'b');
  EXPECT_EQ(snapshot->state(0), BlockState::kCopied);
  for (int range = 0; range < 3; ++range) {
    const std::string kept(snapshot->At(0, range), kBytes);
    EXPECT_EQ(kept.find_first_not_of('a'), std::string::npos) << range;
  }
  snapshots.Write(0, sequence, announce,
                  [](const BlockPieces* pieces) { EXPECT_EQ(pieces, nullptr); });
}

// Who asks for the state of a block that is written in pieces waits for its end.
TEST(StateSnapshotsTest, ReadersMeanwhile_WaitForTheLastPiece) {
  FakeStore store;
  for (int b = 0; b < kBlocks; ++b) store.Write(b, 7);
  const auto snapshot = Opened(store, true);
  std::thread reader;
  std::atomic<bool> is_done{false};
  std::atomic<uint64_t> sequence{0};
  store.snapshots().Write(
      2, sequence, [] { return std::vector<MemoryRange>(); },
      [&](const BlockPieces*) {
        reader = std::thread([&] {
          EXPECT_EQ(snapshot->state(2), BlockState::kCopied);
          EXPECT_TRUE(is_done.load());
        });
        std::this_thread::yield();
        is_done.store(true);
      });
  reader.join();
}

TEST(StateSnapshotsTest, WithoutMemoryForCopies_WrittenBlocksAreLost) {
  FakeStore store;
  const auto snapshot = Opened(store, false);
  store.Write(2, 8);
  EXPECT_EQ(snapshot->state(2), BlockState::kLost);
  EXPECT_EQ(snapshot->state(3), BlockState::kLive);
}

TEST(StateSnapshotsTest, ClosedSnapshot_CostsWritesNothing) {
  FakeStore store;
  const auto snapshot = Opened(store, true);
  store.snapshots().Close(snapshot.get());
  store.Write(2, 8);
  EXPECT_EQ(snapshot->state(2), BlockState::kLive);
}

TEST(StateSnapshotsTest, SnapshotThatIsOpenedAgain_BeginsAnew) {
  FakeStore store;
  const auto snapshot = Opened(store, true);
  store.Write(2, 8);
  store.snapshots().Close(snapshot.get());
  store.snapshots().Open(snapshot);
  EXPECT_EQ(snapshot->state(2), BlockState::kLive);
  EXPECT_THAT(WordsOf(*snapshot, 2), ::testing::Each(8));
}

TEST(StateSnapshotsTest, AfterTheEnd_WhatWasNotCopiedIsLost) {
  FakeStore store;
  const auto snapshot = Opened(store, true);
  store.Write(2, 8);
  store.snapshots().EndAll();
  EXPECT_EQ(snapshot->state(2), BlockState::kCopied);
  EXPECT_EQ(snapshot->state(3), BlockState::kLost);
  EXPECT_EQ(Opened(store, true)->state(0), BlockState::kLost);
}

TEST(StateSnapshotsTest, CopyAhead_CopiesWhatNobodyHasWritten) {
  FakeStore store;
  for (int b = 0; b < kBlocks; ++b) store.Write(b, 7);
  const auto snapshot = Opened(store, true);
  store.Write(2, 8);
  snapshot->CopyAhead();
  for (int b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(snapshot->state(b), BlockState::kCopied);
    store.Write(b, 9);
    EXPECT_THAT(WordsOf(*snapshot, b), ::testing::Each(7));
  }
}

TEST(StateSnapshotsTest, CopyAhead_WithoutMemoryForCopies_LeavesAllLive) {
  FakeStore store;
  const auto snapshot = Opened(store, false);
  snapshot->CopyAhead();
  EXPECT_EQ(snapshot->state(0), BlockState::kLive);
}

TEST(StateSnapshotsTest, CopyAhead_OfAClosedSnapshot_CopiesNothing) {
  FakeStore store;
  const auto snapshot = Opened(store, true);
  store.snapshots().Close(snapshot.get());
  snapshot->CopyAhead();
  EXPECT_EQ(snapshot->state(0), BlockState::kLive);
}

TEST(StateSnapshotsTest, CopyAhead_AfterTheEnd_LeavesAllLost) {
  FakeStore store;
  const auto snapshot = Opened(store, true);
  store.snapshots().EndAll();
  snapshot->CopyAhead();
  EXPECT_EQ(snapshot->state(0), BlockState::kLost);
}

// A writer steps; readers open snapshots, between two steps as the sequences and a step number tell
// them, and read the blocks in any order, some of them twice; half of them copy ahead meanwhile.
TEST(StateSnapshotsTest, RandomInterleavings_GiveTheBitsOfOneStep) {
  FakeStore store;
  std::atomic<uint32_t> begun{0};
  std::atomic<uint32_t> finished{0};
  std::atomic<bool> done{false};
  std::thread writer([&] {
    std::minstd_rand random(1);
    for (uint32_t step = 1; !done.load(); ++step) {
      begun.store(step);
      const bool in_pieces = random() % 2 == 0;
      for (int b = 0; b < kBlocks; ++b) {
        if (in_pieces) {
          store.WriteInPieces(b, step);
        } else {
          store.Write(b, step);
        }
      }
      finished.store(step);
      for (unsigned i = random() % 300; i > 0; --i) std::this_thread::yield();
    }
  });
  std::atomic<int> copied{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      std::minstd_rand random(r + 2);
      for (int opened = 0; opened < 100;) {
        const uint32_t step = finished.load();
        const auto snapshot = Opened(store, true);
        if (begun.load() == step) {
          ++opened;
          const int copying = static_cast<int>(random() % (size_t{4} * kBlocks));
          for (int i = 0; i < 2 * kBlocks; ++i) {
            if (i == copying) snapshot->CopyAhead();
            const int block = static_cast<int>(random() % kBlocks);
            const std::vector<uint32_t> words = WordsOf(*snapshot, block);
            if (snapshot->state(block) == BlockState::kCopied) ++copied;
            ASSERT_THAT(words, ::testing::Each(step));
            for (unsigned pauses = random() % 40; pauses > 0; --pauses) std::this_thread::yield();
          }
        }
        store.snapshots().Close(snapshot.get());
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  done.store(true);
  writer.join();
  EXPECT_GT(copied.load(), 0);
}

}  // namespace
}  // namespace optshard
