// ControlChannel: short messages between rank 0 and every other rank over TCP. It is separate from MPI, which only the
// training thread may call. A rank that cannot connect has no channel; this is no error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blipft {

/// The bytes sent over the wire, between machines of one architecture. Sender and receiver define the types and values.
struct ControlMessage {
  uint32_t type = 0;
  int32_t rank = 0;                        ///< the rank that the message is about
  uint64_t values[4] = {};
  char text[472] = {};                     ///< terminated by 0

  void set_text(const std::string& from);
};
static_assert(sizeof(ControlMessage) == 512);

/// The addresses at which rank 0 listens: plain bytes, to be broadcast.
struct ControlAddress {
  static constexpr uint32_t kMax = 8;
  uint64_t token[2] = {};                  ///< connections that do not send it are rejected
  uint32_t count = 0;
  uint32_t addresses[kMax] = {};          ///< IPv4 addresses of its interfaces, network order
  uint16_t port = 0;
  char host[70] = {};
};

/// Only one thread may use it, except that any thread may call wake(). Calls never block longer than documented.
class ControlChannel {
 public:
  /// Rank 0 of `ranks`: listens. Throws Error if it cannot.
  explicit ControlChannel(int64_t ranks);
  /// Another rank: connects to rank 0. This waits for the network, not for calls on rank 0. Tries several addresses
  /// for at most `seconds` each, those of this machine and of common networks first. open() returns true on success.
  ControlChannel(const ControlAddress& server, int64_t rank, const std::string& host, double seconds = 3);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  const ControlAddress& address() const { return address_; }
  bool open() const;                       ///< on ranks other than 0: true while connected

  struct Event {
    enum class Kind { joined, message, closed } kind = Kind::message;
    int64_t rank = 0;                      ///< the rank at the other end
    ControlMessage message;                ///< for `joined`, its text is the host's name
  };
  /// Returns received events after at most `seconds`; earlier if an event arrives or a thread calls wake().
  std::vector<Event> poll(double seconds);
  void wake();
  /// Sends to `rank` if it is connected: rank 0 to any rank, others to rank 0. A peer that does not read misses it.
  void send(int64_t rank, const ControlMessage& message);

 private:
  struct Connection;
  void accept_new();
  void read_from(Connection& connection, std::vector<Event>& events);
  void take_messages(Connection& connection, std::vector<Event>& events);
  void flush(Connection& connection);
  ControlAddress address_;
  int64_t ranks_ = 0;                      // > 0 on rank 0 only
  int listener_ = -1, wake_[2] = {-1, -1};
  std::vector<Connection> connections_;
};

}  // namespace blipft
