// ControlChannel: short messages between rank 0 and every other rank over TCP, beside MPI, which only the training
// thread may call. Connections that cannot be made are left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blipft {

/// As it goes over the wire, between equal machines. What the numbers mean is the sender's and receiver's matter.
struct ControlMessage {
  uint32_t type = 0;
  int32_t rank = 0;                        ///< whom it concerns
  uint64_t values[4] = {};
  char text[472] = {};                     ///< ends with a 0

  void set_text(const std::string& from);
};
static_assert(sizeof(ControlMessage) == 512);

/// Where rank 0 listens: plain bytes, to be broadcast.
struct ControlAddress {
  static constexpr uint32_t kMost = 8;
  uint64_t token[2] = {};                  ///< who does not send it is not heard
  uint32_t count = 0;
  uint32_t addresses[kMost] = {};          ///< IPv4, network order: of its interfaces
  uint16_t port = 0;
  char host[70] = {};
};

/// One thread uses it, but wake() is any thread's. Calls never block longer than they say.
class ControlChannel {
 public:
  /// Rank 0 of `ranks`: listens. Throws Error where it cannot.
  explicit ControlChannel(int64_t ranks);
  /// Another rank: connects to rank 0, which waits for nothing but the network; several addresses are tried, those of
  /// this machine and its networks first, each for `seconds` at most. open() tells whether it worked.
  ControlChannel(const ControlAddress& server, int64_t rank, const std::string& host, double seconds = 3);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  const ControlAddress& address() const { return address_; }
  bool open() const;                       ///< of another rank than 0: still connected

  struct Event {
    enum class Kind { joined, message, closed } kind = Kind::message;
    int64_t rank = 0;                      ///< of the other end
    ControlMessage message;                ///< joined: its text is the host's name
  };
  /// What has come, after at most `seconds`; earlier if something comes or somebody wakes it.
  std::vector<Event> poll(double seconds);
  void wake();
  /// To `rank`, if it is connected: rank 0 to any, others to rank 0. Given up where the other end does not read.
  void send(int64_t rank, const ControlMessage& message);

 private:
  struct Connection;
  void accept_new();
  void read_from(Connection& connection, std::vector<Event>& events);
  void take_messages(Connection& connection, std::vector<Event>& events);
  void flush(Connection& connection);
  ControlAddress address_;
  int64_t ranks_ = 0;                      // > 0: rank 0
  int listener_ = -1, wake_[2] = {-1, -1};
  std::vector<Connection> connections_;
};

}  // namespace blipft
