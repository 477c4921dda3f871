// The watchdog's thread; see watchdog.h.
#include "liveness/watchdog.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/standard_output.h"
#include "blipft/control_channel.h"
#include "liveness/rank_watch.h"
#include "ops/quietly.h"

namespace blipft {

namespace {

using Clock = std::chrono::steady_clock;

enum MessageType : uint32_t { kBeat = 1, kGoodbye, kFailing, kVerdict };

constexpr double kJoinSeconds = 15;        // after this time, absent ranks are reported
constexpr double kFailingSeconds = 5;      // after this time, absent ranks are reported
constexpr double kSignalSeconds = 0.5;     // time for a failing rank to end the others
constexpr double kLongestTick = 2;         // maximum time that the clock counts between two calls, or a quarter of the
                                           // timeout if that is less

std::atomic<bool> terminated{false};

void note_signal(int) { terminated.store(true, std::memory_order_relaxed); }

// Returns the bytes that this process has read and written so far, or 0 if the system does not report them.
uint64_t io_bytes() {
  const int file = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[512] = "";
  const ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  uint64_t sum = 0;
  for (const char* name : {"rchar: ", "wchar: "})
    if (const char* found = bytes > 0 ? std::strstr(text, name) : nullptr) sum += std::strtoull(found + 7, nullptr, 10);
  return sum;
}

// Counts the seconds in which this process ran. While it was stopped or got no processor, the other ranks are not at
// fault.
class ActiveClock {
 public:
  /// The time between two calls of now() counts as `longest_tick` at most.
  explicit ActiveClock(double longest_tick) : longest_tick_(longest_tick) {}
  double now() {
    const Clock::time_point now = Clock::now();
    seconds_ += std::min(std::chrono::duration<double>(now - last_).count(), longest_tick_);
    last_ = now;
    return seconds_;
  }

 private:
  const double longest_tick_;
  Clock::time_point last_ = Clock::now();
  double seconds_ = 0;
};

}  // namespace

class Watchdog::Thread {
 public:
  Thread(const World& world, double timeout)
      : activity_(world.activity()), rank_(world.rank()), ranks_(world.size()), host_(world.host()), timeout_(timeout),
        period_(std::min(1.0, timeout / 5)), clock_(std::min(kLongestTick, timeout / 4)),
        watch_(ranks_, timeout, activity_) {
    ControlAddress address;
    if (rank_ == 0 && ranks_ > 1) address = listen();
    if (ranks_ > 1) world.broadcast(&address, sizeof address, 0);
    server_ = address;
    struct sigaction now{};
    if (sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
      now.sa_handler = note_signal;
      now.sa_flags = SA_RESTART;
      handles_ = sigaction(SIGTERM, &now, nullptr) == 0;
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Thread() {
    stop(kGoodbye);
    thread_.join();
    // Closing a connection that holds unread data can discard the goodbye. Therefore the connection stays open until
    // the process ends. The process ends after MPI, which ends on all ranks together.
    static std::vector<std::unique_ptr<ControlChannel>> parked;
    if (channel_) parked.push_back(std::move(channel_));
    if (handles_) std::signal(SIGTERM, SIG_DFL);
  }

  // Sends rank 0 the reason why this rank will be silent, then ends the thread (kGoodbye) or continues to listen.
  void stop(MessageType type) {
    std::unique_lock lock(mutex_);
    last_word_ = type;
    reported_ = false;
    if (channel_) channel_->wake();
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(1), [this] { return reported_; });
  }

  void set_end(std::function<void()> end) {
    const std::lock_guard lock(check_mutex_);
    at_end_ = std::move(end);
  }
  void set_check(std::function<std::string()> check) {
    const std::lock_guard lock(check_mutex_);
    check_ = std::move(check);
  }

 private:
  ControlAddress listen() {
    try {
      channel_ = std::make_unique<ControlChannel>(ranks_);
      return channel_->address();
    } catch (const Error& error) {
      warn(concat("the watchdog ", error.what(), "; ranks that are killed or stopped will not be noticed"));
      return {};
    }
  }

  void warn(const std::string& text) const {
    std::fprintf(stderr, "warning: rank %lld on %s: %s\n", static_cast<long long>(rank_), host_.c_str(), text.c_str());
  }

  void connect() {
    if (rank_ == 0 || server_.port == 0) return;
    auto channel = std::make_unique<ControlChannel>(server_, rank_, host_);
    if (!channel->open())
      return warn(concat("no TCP connection to rank 0 on ", server_.host, " (port ", server_.port, "): the watchdog ",
                         "goes on without this rank"));
    heard_ = clock_.now();
    const std::lock_guard lock(mutex_);
    channel_ = std::move(channel);
  }

  void run() {
    try {
      connect();
      if (rank_ == 0) watch_.joined(0, host_, clock_.now());
      while (!ends()) tick();
    } catch (const std::exception& error) {
      warn(concat("the watchdog has failed and goes on without this rank: ", error.what()));
    }
  }

  // Returns true if this rank has sent its goodbye.
  bool ends() {
    std::unique_lock lock(mutex_);
    if (last_word_ == 0 || reported_) return last_word_ == kGoodbye;
    notify(last_word_);
    if (last_word_ == kFailing) failing_ = true;
    reported_ = true;
    changed_.notify_all();
    return last_word_ == kGoodbye;
  }

  ControlMessage message(uint32_t type, int64_t rank) const {
    const Beat beat = own_beat();
    return {type, static_cast<int32_t>(rank), {beat.state, beat.progress, beat.io_bytes}};
  }
  Beat own_beat() const { return {activity_.word(), activity_.progress(), io_}; }

  void send_all(const ControlMessage& message) {
    if (!channel_) return;
    if (rank_ != 0) return channel_->send(0, message);
    for (int64_t r = 1; r < ranks_; ++r) channel_->send(r, message);
  }
  void notify(uint32_t type) {
    if (rank_ == 0) watch_.left(0);
    send_all(message(type, rank_));
  }

  void tick() {
    if (channel_) {
      const std::vector<ControlChannel::Event> events = channel_->poll(period_ / 2);
      note_absence();
      for (const ControlChannel::Event& event : events) take(event);
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(period_ / 2), [this] { return last_word_ != 0 && !reported_; });
    }
    const double now = clock_.now();
    if (now - beaten_ >= period_) {
      beaten_ = now;
      beat(now);
    }
    judge(now);
    follow_signal(now);
  }

  // Detects that this process itself did not run for a time in which the other ranks may have ended.
  void note_absence() {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - ticked_).count();
    ticked_ = now;
    if (seconds > timeout_ / 2) absent_seconds_ = seconds, back_ = now;
  }
  // Returns the reason why ranks are lost: `killed`, unless this process itself did not run until a moment ago.
  std::string why_gone(const std::string& killed) const {
    if (absent_seconds_ == 0 || Clock::now() - back_ > std::chrono::seconds(5)) return killed;
    return concat("this rank itself did not run for ", static_cast<int64_t>(absent_seconds_ + 0.5), " s (stopped, or without ",
                  "a processor; parallel.timeout_seconds ", timeout_, "): the others have ended without it");
  }

  void beat(double now) {
    io_ = io_bytes();
    if (alone()) watch_.beat(rank_, own_beat(), now);
    if (!failing_) send_all(message(kBeat, rank_));
    std::string failure;
    {
      const std::lock_guard lock(check_mutex_);
      if (check_) failure = check_();
    }
    if (failure.empty() || failing_) return;
    notify(kFailing);
    finish(failure);
  }

  // Returns true if this rank watches itself: rank 0, or a rank without a connection to rank 0.
  bool alone() {
    if (rank_ == 0) return true;
    if (!channel_ && !watches_itself_) watches_itself_ = true, watch_.joined(rank_, host_, clock_.now());
    return !channel_;
  }

  void take(const ControlChannel::Event& event) {
    using Kind = ControlChannel::Event::Kind;
    const double now = clock_.now();
    const ControlMessage& message = event.message;
    if (rank_ != 0) return take_from_server(event, now);
    if (event.kind == Kind::joined) return watch_.joined(event.rank, message.text, now);
    if (event.kind == Kind::closed) return watch_.closed(event.rank, now);
    if (message.type == kBeat)
      watch_.beat(event.rank, {message.values[0], message.values[1], message.values[2]}, now);
    if (message.type == kGoodbye || message.type == kFailing) watch_.left(event.rank);
    if (message.type != kFailing) return;
    for (int64_t r = 1; r < ranks_; ++r)
      if (r != event.rank) channel_->send(r, message);
    peer_fails(event.rank, now);
  }

  void take_from_server(const ControlChannel::Event& event, double now) {
    heard_ = now;
    if (failing_) return;                  // this rank ends all others, so their end is expected
    if (event.kind == ControlChannel::Event::Kind::closed) {
      if (!server_left_ && peer_failing_ < 0)
        lose(why_gone(concat("missing: ", server_name(), ": killed, its process has ended without a word")));
      server_left_ = true;
      return;
    }
    if (event.message.type == kBeat) server_state_ = event.message.values[0];
    if (event.message.type == kGoodbye) server_left_ = true;
    if (event.message.type == kFailing) peer_fails(event.message.rank, now);
    if (event.message.type != kVerdict) return;
    if (event.message.values[0] == 0) _exit(kLostRankExit);  // only this rank was stopped; others reported it
    lose(event.message.text);
  }

  std::string server_name() const {
    return concat("rank 0 on ", server_.host, " (last heard: ", activity_.text(Activity::State::of(server_state_)), ")");
  }

  void peer_fails(int64_t rank, double now) {
    if (peer_failing_ >= 0) return;
    peer_failing_ = rank;
    failing_since_ = now;
  }

  void judge(double now) {
    if (failing_) return;                  // this rank ends all ranks by itself
    if (peer_failing_ >= 0) {
      if (now - failing_since_ > kFailingSeconds) finish(concat("missing: rank ", peer_failing_, ", which has failed"));
      return;
    }
    if (rank_ == 0 && ranks_ > 1 && channel_ && !checked_join_ && now > std::max(kJoinSeconds, timeout_)) {
      checked_join_ = true;
      if (const std::string absent = watch_.absent(); !absent.empty())
        warn(concat("no TCP connection from rank(s) ", absent, ": the watchdog goes on without them"));
    }
    if (rank_ == 0 || watches_itself_) {
      if (const auto verdict = watch_.verdict(now)) lose(watch_.has_gone() ? why_gone(*verdict) : *verdict);
    } else if (channel_ && !server_left_ && now - heard_ > timeout_) {
      lose(concat("missing: ", server_name(), ": stopped or cut off, no heartbeat for ",
                  static_cast<int64_t>(now - heard_), " s (parallel.timeout_seconds ", timeout_, ")"));
    }
  }

  void lose(const std::string& why) {
    int64_t notified = 0;
    if (rank_ == 0 && channel_) {
      ControlMessage verdict = message(kVerdict, 0);
      verdict.set_text(why);
      for (int64_t r = 1; r < ranks_; ++r) {
        verdict.values[0] = watch_.hears(r, clock_.now());
        notified += static_cast<int64_t>(verdict.values[0]);
        channel_->send(r, verdict);
      }
    }
    print_line(why);
    // The other ranks close their connections after reading the verdict. If this process ended earlier, they might not
    // receive it.
    const Clock::time_point last = Clock::now() + std::chrono::seconds(5);
    while (notified > 0 && Clock::now() < last)
      for (const ControlChannel::Event& event : channel_->poll(0.1))
        notified -= event.kind == ControlChannel::Event::Kind::closed;
    end();
  }

  [[noreturn]] void finish(const std::string& why) const {
    print_line(why);
    end();
  }

  // Prints the only line of this rank about its end.
  void print_line(const std::string& why) const {
    const std::string line = concat("\nblipft: rank ", rank_, " on ", host_, ": ",
                                    activity_.text(activity_.state()), "; ", why, "\n");
    write_error_now(line);
  }

  [[noreturn]] void end() const {
    std::thread([this] {                   // a file system that hangs does not block the exit
      const std::lock_guard lock(check_mutex_);
      if (at_end_) quietly(at_end_);
    }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others print before mpirun ends them
    _exit(kLostRankExit);
  }

  // mpirun sends SIGTERM to all ranks when one is killed: wait for a verdict, then let SIGTERM have its default effect.
  void follow_signal(double now) {
    if (!terminated.load(std::memory_order_relaxed)) return;
    if (terminated_since_ < 0) terminated_since_ = now;
    if (now - terminated_since_ < kSignalSeconds && peer_failing_ < 0) return;
    std::signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
  }

  Activity& activity_;
  const int64_t rank_, ranks_;
  const std::string host_;
  const double timeout_, period_;
  ActiveClock clock_;
  RankWatch watch_;                        // of rank 0, or of a rank that watches itself
  ControlAddress server_;
  std::unique_ptr<ControlChannel> channel_;  // null: no connection
  bool handles_ = false, checked_join_ = false, watches_itself_ = false, server_left_ = false, failing_ = false;
  Clock::time_point ticked_ = Clock::now(), back_;
  double absent_seconds_ = 0;
  double heard_ = 0, beaten_ = -1e9, terminated_since_ = -1, failing_since_ = 0;
  int64_t peer_failing_ = -1;
  uint64_t io_ = 0, server_state_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t last_word_ = 0;                 // message type that stop() has requested; 0: none
  bool reported_ = false;
  mutable std::mutex check_mutex_;         // guards check_ and at_end_
  std::function<std::string()> check_;
  std::function<void()> at_end_;
  std::thread thread_;
};

Watchdog::Watchdog(const World& world, double timeout_seconds)
    : thread_(std::make_unique<Thread>(world, timeout_seconds)) {}
Watchdog::~Watchdog() = default;
void Watchdog::set_check(std::function<std::string()> failure) { thread_->set_check(std::move(failure)); }
void Watchdog::set_end(std::function<void()> end) { thread_->set_end(std::move(end)); }
void Watchdog::failing() { thread_->stop(kFailing); }

}  // namespace blipft
