// A thread pool that shares work by tasks and sleeps when there is none. Knows no arithmetic.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace stoker {

// Memory that grows and is kept between calls; 64-byte aligned. Never shrinks: a pool lives as long as a model.
class Scratch {
 public:
  ~Scratch();
  bool reserve(size_t bytes);  // false when the system refuses; contents are lost
  template <class T>
  T* at(size_t offset) const { return reinterpret_cast<T*>(memory_ + offset); }

 private:
  char* memory_ = nullptr;
  size_t size_ = 0;
};

class Pool {
 public:
  using Task = void (*)(void* context, int64_t task, int thread);

  Pool(int threads, int spin_us);  // throws std::system_error when a thread cannot start
  ~Pool();
  int threads() const { return int(workers_.size()) + 1; }

  // Runs task(context, 0 .. count - 1), in any order, on all threads and the caller's; returns when all are done.
  // One caller at a time: hold `calls`.
  void run(int64_t count, Task task, void* context);

  template <class Fn>
  void each(int64_t count, Fn&& fn) {  // fn(task, thread)
    run(count, [](void* f, int64_t task, int thread) { (*static_cast<std::remove_reference_t<Fn>*>(f))(task, thread); }, &fn);
  }

  // The task that `thread` will run after its present one, or -1: claimed early, so that its memory can be fetched ahead.
  int64_t upcoming(int thread) const { return upcoming_[thread].task; }

  std::mutex calls;
  Scratch shared;                    // of the call in progress
  std::unique_ptr<Scratch[]> local;  // by thread

 private:
  void work(int thread);
  void drain(int thread);
  bool await(uint64_t seen);  // false when the pool closes

  // The job in progress, written by the caller while no worker is inside (inside_ == 0 and open_ == 0).
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;

  struct alignas(64) Upcoming {
    int64_t task = -1;
  };
  std::unique_ptr<Upcoming[]> upcoming_;  // by thread; each touches its own

  // Each on its own line: the counters are hit by all threads.
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> published_{0};  // generation that woke the workers last
  alignas(64) std::atomic<uint64_t> open_{0};       // generation that may be joined, 0 between jobs
  alignas(64) std::atomic<int> inside_{0};          // workers that may be touching the job
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  int spin_us_;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace stoker
