#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention/cuda/flash_sm90/params.hpp"

/// Tiles, roles and the shared-memory layout of one compiled forward.
namespace warpmeter::attention::flash_sm90 {

/// kBlockM query rows, 64 a consumer warpgroup; kBlockN keys a step. kPingPong: the warpgroups take turns at the tensor
/// cores, one in its softmax while another multiplies.
template <int kHeadDim_, int kBlockM_, int kBlockN_, bool kCausal_, bool kPingPong_, int kStages_ = 2,
          int kQueryStages_ = 1>
struct ForwardConfig {
  using Params = ForwardParams;
  static constexpr bool kPaged = false;
  static constexpr int kHeadDim = kHeadDim_, kBlockM = kBlockM_, kBlockN = kBlockN_;
  static constexpr bool kCausal = kCausal_, kPingPong = kPingPong_;
  static constexpr bool kPrefetch = !kCausal;      ///< of what an item begins with, into L2
  static constexpr int kConsumers = kBlockM / 64;  ///< warpgroups
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kStages = kStages_;            ///< of keys and of values
  static constexpr int kQueryStages = kQueryStages_;  ///< 2: the next item's queries come while this one's are in use

  // Registers a thread: a block is launched with the same for all, and the warpgroups share out what it then has.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= kLaunchRegisters * (kConsumers + 1));

  static constexpr int kPanels = (kHeadDim + 63) / 64;  ///< of 64 columns, 128 bytes: the swizzle's width
  static constexpr int kQueryPanelBytes = 64 * 128;     ///< of one warpgroup's rows
  static constexpr int kQueryBytes = kPanels * kQueryPanelBytes;
  static constexpr int kKeyPanelBytes = kBlockN * 128;
  static constexpr int kKeyBytes = kPanels * kKeyPanelBytes;  ///< of one stage; values alike

  static constexpr int kQueryOffset = 0;
  static constexpr int kKeyOffset = kQueryStages * kConsumers * kQueryBytes;
  static constexpr int kValueOffset = kKeyOffset + kStages * kKeyBytes;

  // O leaves through shared memory and the copy engine where there is room for it, 16 rows a warp.
  static constexpr int kOutputOffset = kValueOffset + kStages * kKeyBytes;
  static constexpr int kOutputPanelBytes = 16 * 128;
  static constexpr int kOutputBytes = kPanels * kOutputPanelBytes;  ///< of one warp
  static constexpr bool kStagedOutput = kOutputOffset + 4 * kConsumers * kOutputBytes + 2048 <= 227 * 1024;
  static constexpr int kBarrierOffset = kOutputOffset + (kStagedOutput ? 4 * kConsumers * kOutputBytes : 0);

  // Barriers, 8 bytes each.
  static constexpr int kQueryFull = kBarrierOffset;  ///< one a stage and consumer
  static constexpr int kQueryEmpty = kQueryFull + 8 * kQueryStages * kConsumers;
  static constexpr int kKeyFull = kQueryEmpty + 8 * kQueryStages * kConsumers;
  static constexpr int kKeyEmpty = kKeyFull + 8 * kStages;
  static constexpr int kValueFull = kKeyEmpty + 8 * kStages;
  static constexpr int kValueEmpty = kValueFull + 8 * kStages;
  static constexpr int kWorkSlots = 3;  ///< to be stored, in work, next
  static constexpr int kWorkFull = kValueEmpty + 8 * kStages;
  static constexpr int kWorkEmpty = kWorkFull + 8 * kWorkSlots;
  static constexpr int kWorkDemand = kWorkEmpty + 8 * kWorkSlots;      ///< an arrival an item: time to draw the next
  static constexpr int kWorkItems = (kWorkDemand + 8 + 15) / 16 * 16;  ///< four ints a slot: WorkItem
  static constexpr int kSharedEnd = kWorkItems + 16 * kWorkSlots;
  static constexpr int kSharedBytes = kSharedEnd + 1024;  ///< the base is aligned to 1024 by hand

  static_assert((kConsumers == 2 || kConsumers == 3) && kBlockM % 64 == 0 && kBlockN % 16 == 0 && kHeadDim % 16 == 0 &&
                kBlockN <= 256);
  static_assert(kSharedBytes <= 227 * 1024);
};

/// The same with keys and values in pages, in whole blocks: what lies behind the last key is no zero there.
template <class Config>
struct PagedConfig : Config {
  using Params = PagedForwardParams;
  static constexpr bool kPaged = true;
  static constexpr int kLeastPage = 16, kMostBoxes = Config::kBlockN / kLeastPage;  ///< of a key block
  static_assert(!Config::kCausal && Config::kBlockN == kPagedBlock);
};

// The tiles in use; measured beside others in dev/flash_sm90.md.
template <bool kCausal>
using ForwardD64 = ForwardConfig<64, 192, 128, kCausal, true, kCausal ? 3 : 2>;
template <bool kCausal>
using ForwardD80 = ForwardConfig<80, 128, 176, kCausal, true>;
template <bool kCausal>
using ForwardD96 = ForwardConfig<96, 128, 176, kCausal, true>;
template <bool kCausal>
using ForwardD128 = ForwardConfig<128, 128, 128, kCausal, true>;
template <bool kCausal>
using ForwardD256 = ForwardConfig<256, 128, 80, kCausal, false>;

}  // namespace warpmeter::attention::flash_sm90
