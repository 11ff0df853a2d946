#include "pool.h"

#include <chrono>
#include <new>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace stoker {
namespace {

void pause_cpu() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  asm volatile("yield");
#endif
}

constexpr int kPausesPerClockRead = 32;   // reading the clock costs about as much as a pause
constexpr int kPausesBeforeYield = 4096;  // about 50 µs: by then the worker has lost its core and needs ours

}  // namespace

Scratch::~Scratch() { ::operator delete(memory_, std::align_val_t(64)); }

bool Scratch::reserve(size_t bytes) {
  if (bytes <= size_) return true;
  ::operator delete(memory_, std::align_val_t(64));
  size_ = 0;
  memory_ = static_cast<char*>(::operator new(bytes, std::align_val_t(64), std::nothrow));
  if (memory_ == nullptr) return false;
  size_ = bytes;
  return true;
}

Pool::Pool(int threads, int spin_us) : local(new Scratch[threads]), upcoming_(new Upcoming[threads]), spin_us_(spin_us) {
  workers_.reserve(threads - 1);
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop_ = true;
    { std::lock_guard lock(sleep_); }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    throw;
  }
}

Pool::~Pool() {
  stop_ = true;
  { std::lock_guard lock(sleep_); }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::run(int64_t count, Task task, void* context) {
  if (workers_.empty() || count <= 1) {
    for (int64_t index = 0; index < count; ++index) {
      upcoming_[0].task = index + 1 < count ? index + 1 : -1;
      task(context, index, 0);
    }
    return;
  }
  task_ = task;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t generation = published_.load(std::memory_order_relaxed) + 1;
  open_.store(generation);
  published_.store(generation);
  if (sleepers_.load() > 0) {
    { std::lock_guard lock(sleep_); }  // a worker between its last look and its sleep holds this lock
    wake_.notify_all();
  }
  drain(0);
  // A worker joins by entering `inside_` and then finding the job open. With the job closed first, whoever is counted
  // inside now either works on it, and is waited for, or will find it closed. A worker still asleep is not waited for.
  open_.store(0);
  for (int spins = 0; inside_.load() != 0; ++spins) {
    if (spins < kPausesBeforeYield) pause_cpu();
    else std::this_thread::yield();
  }
}

void Pool::drain(int thread) {
  for (int64_t index = next_.fetch_add(1, std::memory_order_relaxed); index < count_;) {
    const int64_t after = next_.fetch_add(1, std::memory_order_relaxed);
    upcoming_[thread].task = after < count_ ? after : -1;
    task_(context_, index, thread);
    index = after;
  }
}

void Pool::work(int thread) {
  for (uint64_t seen = 0; await(seen);) {
    seen = published_.load();
    inside_.fetch_add(1);
    if (open_.load() == seen) drain(thread);
    inside_.fetch_sub(1);
  }
}

bool Pool::await(uint64_t seen) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::microseconds(spin_us_);
  do {
    for (int spins = 0; spins < kPausesPerClockRead; ++spins) {
      if (published_.load(std::memory_order_acquire) != seen) return !stop_;
      pause_cpu();
    }
  } while (!stop_ && Clock::now() < until);
  std::unique_lock lock(sleep_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return stop_ || published_.load() != seen; });
  sleepers_.fetch_sub(1);
  return !stop_;
}

}  // namespace stoker
