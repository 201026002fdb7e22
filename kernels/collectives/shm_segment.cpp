#include "kernels/collectives/detail/shm_segment.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/device.hpp"

namespace warpmeter::collectives::detail {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kMaxThreads = 64;
constexpr std::uint64_t kMagic = 0x314D485350524157;  // "WARPSHM1"

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Smaller chunks keep the slots in a core's second-level cache but meet too often: on two cores with 1 MiB each,
/// 512 KiB halved the time of 1 MiB (no second chunk to wait for) and beat 256 KiB and 1 MiB at 10 and 100 MiB. With
/// more ranks than cores every chunk costs a change of process, and larger ones pay.
std::size_t default_chunk_bytes(bool crowded) {
  return crowded ? std::size_t{1} << 20 : std::size_t{512} << 10;
}

}  // namespace

ShmSegment::ShmSegment(const ShmOptions& options)
    : world_size_(options.world_size), timeout_s_(options.timeout_s), heap_bytes_(round_up(options.heap_bytes, kPage)) {
  WM_CHECK(options.world_size >= 1 && options.world_size <= kMaxRanks,
           "world size " + std::to_string(options.world_size));
  WM_CHECK(options.threads >= 0 && options.threads <= kMaxThreads, "threads " + std::to_string(options.threads));
  WM_CHECK(options.timeout_s > 0 && options.timeout_s < 2e6, "timeout of " + std::to_string(options.timeout_s) + " s");
  WM_CHECK(options.heap_bytes <= std::size_t{1} << 40, "heap of " + std::to_string(options.heap_bytes) + " bytes");
  const int cores = options.cores > 0 ? options.cores : properties(Device::cpu()).cores;
  threads_ = options.threads > 0 ? options.threads : std::clamp(cores / world_size_, 1, kMaxThreads);
  crowded_ = world_size_ * threads_ > cores;
  chunk_bytes_ = options.chunk_bytes > 0 ? options.chunk_bytes : default_chunk_bytes(crowded_);
  // A rank's part of a chunk has at least one element, whatever the type.
  chunk_bytes_ = round_up(std::max(chunk_bytes_, static_cast<std::size_t>(world_size_) * 64), kPage);

  lay_out();
  fd_ = memfd_create("warpmeter-collectives", MFD_CLOEXEC);
  if (fd_ < 0) refuse("shared memory cannot be made");
  if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) refuse("shared memory cannot be sized");
  map();

  new (base_) FailureRecord;
  for (int rank = 0; rank < world_size_; ++rank) new (&control(rank)) RankControl;
  for (int thread = 0; thread < threads_; ++thread) {
    for (int rank = 0; rank < world_size_; ++rank) new (&channel(thread, rank)) ChannelControl;
  }
  new (base_ + kHeaderAt) SegmentHeader{kMagic, world_size_, threads_, timeout_s_, chunk_bytes_, heap_bytes_, crowded_};
}

ShmSegment::ShmSegment(const std::string& path) {
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) refuse(("shared memory " + path + " cannot be opened").c_str());
  SegmentHeader header = {};
  if (pread(fd_, &header, sizeof(header), static_cast<off_t>(kHeaderAt)) != sizeof(header) || header.magic != kMagic) {
    errno = EINVAL;
    refuse((path + " is no segment of this program").c_str());
  }
  world_size_ = header.world_size;
  threads_ = header.threads;
  timeout_s_ = header.timeout_s;
  chunk_bytes_ = header.chunk_bytes;
  heap_bytes_ = header.heap_bytes;
  crowded_ = header.crowded;
  lay_out();
  map();
}

void ShmSegment::lay_out() {
  const auto ranks = static_cast<std::size_t>(world_size_);
  const auto channels = ranks * static_cast<std::size_t>(threads_);
  controls_at_ = kPage;
  channels_at_ = round_up(controls_at_ + ranks * sizeof(RankControl), kPage);
  one_shots_at_ = round_up(channels_at_ + channels * sizeof(ChannelControl), kPage);
  slots_at_ = one_shots_at_ + ranks * 2 * kOneShotBytes;
  heaps_at_ = slots_at_ + channels * kSlots * chunk_bytes_;
  bytes_ = heaps_at_ + ranks * heap_bytes_;
}

void ShmSegment::map() {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (memory == MAP_FAILED) refuse("shared memory cannot be mapped");
  base_ = static_cast<char*>(memory);
  (void)madvise(base_, bytes_, MADV_HUGEPAGE);  // a wish: many systems keep shared memory in small pages
}

void ShmSegment::refuse(const char* what) const {
  const std::string reason = std::string(what) + ": " + std::strerror(errno);
  if (fd_ >= 0) close(fd_);
  throw DeviceError(reason, false);
}

std::string ShmSegment::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

ShmSegment::~ShmSegment() {
  munmap(base_, bytes_);
  close(fd_);
}

RankControl& ShmSegment::control(int rank) const noexcept {
  return reinterpret_cast<RankControl*>(base_ + controls_at_)[rank];
}

ChannelControl& ShmSegment::channel(int thread, int rank) const noexcept {
  return reinterpret_cast<ChannelControl*>(base_ + channels_at_)[thread * world_size_ + rank];
}

char* ShmSegment::one_shot(int rank, unsigned side) const noexcept {
  return base_ + one_shots_at_ + (static_cast<std::size_t>(rank) * 2 + side) * kOneShotBytes;
}

char* ShmSegment::slot(int thread, int rank, int slot) const noexcept {
  const auto channel = static_cast<std::size_t>(thread * world_size_ + rank);
  return base_ + slots_at_ + (channel * kSlots + static_cast<std::size_t>(slot)) * chunk_bytes_;
}

std::int64_t ShmSegment::heap_offset(const void* data, std::size_t bytes) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(base_) + heaps_at_;
  const auto end = reinterpret_cast<std::uintptr_t>(base_) + bytes_;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address < begin || address > end || bytes > end - address) return kNotShared;
  return static_cast<std::int64_t>(address - reinterpret_cast<std::uintptr_t>(base_));
}

char* ShmSegment::allocate(int rank, std::size_t bytes) {
  const std::size_t begin = heaps_at_ + static_cast<std::size_t>(rank) * heap_bytes_;
  const std::size_t end = begin + heap_bytes_;
  const std::lock_guard lock(heap_mutex_);
  std::size_t largest_gap = 0;
  if (bytes <= heap_bytes_) {
    const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), kPage);
    // First fit: the gaps between live blocks, in order of address.
    std::size_t gap = begin;
    for (auto block = blocks_.begin();; ++block) {
      const std::size_t gap_end = block == blocks_.end() ? end : block->first;
      largest_gap = std::max(largest_gap, gap_end - gap);
      if (gap_end - gap >= wanted) {
        // Takes the pages now: later the system could only answer with SIGBUS.
        if (fallocate(fd_, 0, static_cast<off_t>(gap), static_cast<off_t>(wanted)) != 0) {
          throw OutOfMemory(bytes, free_memory_bytes(Device::cpu()), heap_bytes_);
        }
        blocks_.emplace(gap, wanted);
        return base_ + gap;
      }
      if (block == blocks_.end()) break;
      gap = block->first + block->second;
    }
  }
  throw OutOfMemory(bytes, largest_gap, heap_bytes_);
}

void ShmSegment::free(char* data) noexcept {
  const std::lock_guard lock(heap_mutex_);
  const auto block = blocks_.find(static_cast<std::size_t>(data - base_));
  if (block == blocks_.end()) return;
  (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block->first),
                  static_cast<off_t>(block->second));
  blocks_.erase(block);
}

void ShmSegment::fail(CollectiveFault fault, const std::vector<int>& ranks, const std::string& text) noexcept {
  FailureRecord& record = failure();
  std::uint32_t none = 0;
  if (!record.state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return;
  record.fault = fault;
  record.ranks = 0;
  for (const int rank : ranks) record.ranks |= std::uint64_t{1} << rank;
  const std::size_t length = std::min(text.size(), sizeof(record.text) - 1);
  std::memcpy(record.text, text.data(), length);
  record.text[length] = '\0';
  record.state.store(2, std::memory_order_release);
}

void ShmSegment::throw_failure() const {
  const FailureRecord& record = failure();
  std::vector<int> ranks;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if ((record.ranks >> rank & 1U) != 0) ranks.push_back(rank);
  }
  throw_collective_error(record.fault, std::move(ranks), record.text);
}

}  // namespace warpmeter::collectives::detail
