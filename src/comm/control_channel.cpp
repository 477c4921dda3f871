// Implements messages over TCP; see control_channel.h.
#include "blipft/control_channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <random>

#include "blipft/error.h"

namespace blipft {

namespace {

constexpr uint32_t kHello = 0x626c6674;
constexpr size_t kMaxStrangers = 64;      // limit of connections without a valid hello, plus one per rank

struct Interface {
  uint32_t address, mask;
};

// Returns the IPv4 interfaces that are up, without the loopback.
std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || !at->ifa_netmask || at->ifa_addr->sa_family != AF_INET) continue;
    if (!(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK)) continue;
    found.push_back({reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr,
                     reinterpret_cast<const sockaddr_in*>(at->ifa_netmask)->sin_addr.s_addr});
  }
  freeifaddrs(list);
  return found;
}

// Returns addresses of rank 0, most likely first: loopback on its machine; common networks; its host name; all others.
std::vector<uint32_t> candidates(const ControlAddress& server, const std::string& host) {
  std::vector<uint32_t> order;
  const auto add = [&](uint32_t address) {
    if (std::count(order.begin(), order.end(), address) == 0) order.push_back(address);
  };
  if (host == server.host) add(htonl(INADDR_LOOPBACK));
  const std::vector<Interface> mine = interfaces();
  const uint32_t count = std::min(server.count, ControlAddress::kMax);
  for (uint32_t i = 0; i < count; ++i)
    for (const Interface& own : mine)
      if (((server.addresses[i] ^ own.address) & own.mask) == 0) add(server.addresses[i]);
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (host != server.host && getaddrinfo(server.host, nullptr, &hints, &list) == 0) {
    for (const addrinfo* at = list; at; at = at->ai_next)
      add(reinterpret_cast<const sockaddr_in*>(at->ai_addr)->sin_addr.s_addr);
    freeaddrinfo(list);
  }
  for (uint32_t i = 0; i < count; ++i) add(server.addresses[i]);
  return order;
}

// Connects a TCP socket. Returns -1 on failure or after `seconds`.
int connect_to(uint32_t address, uint16_t port, double seconds) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s < 0) return -1;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address;
  to.sin_port = htons(port);
  int error = connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{s, POLLOUT, 0};
    socklen_t length = sizeof error;
    if (::poll(&ready, 1, static_cast<int>(seconds * 1e3)) != 1 ||
        getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
      error = ETIMEDOUT;
  }
  if (error == 0) return s;
  close(s);
  return -1;
}

}  // namespace

void ControlMessage::set_text(const std::string& from) {
  const size_t bytes = std::min(from.size(), sizeof text - 1);
  std::memcpy(text, from.data(), bytes);
  std::memset(text + bytes, 0, sizeof text - bytes);
}

struct ControlChannel::Connection {
  int socket = -1;
  int64_t rank = -1;                       // -1: no hello received yet
  std::vector<char> in, out;
};

ControlChannel::ControlChannel(int64_t ranks) : ranks_(ranks) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof any;
  const bool listens = listener_ >= 0 && bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 &&
                       listen(listener_, 1024) == 0 && pipe2(wake_, O_CLOEXEC | O_NONBLOCK) == 0 &&
                       getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &length) == 0;
  if (!listens) {
    const std::string why = std::strerror(errno);
    if (listener_ >= 0) close(listener_);
    throw Error(concat("cannot listen on a TCP port: ", why));
  }
  address_.port = ntohs(any.sin_port);
  gethostname(address_.host, sizeof address_.host - 1);
  for (const Interface& own : interfaces())
    if (address_.count < ControlAddress::kMax) address_.addresses[address_.count++] = own.address;
  std::random_device random;
  for (uint64_t& part : address_.token) part = static_cast<uint64_t>(random()) << 32 | random();
}

ControlChannel::ControlChannel(const ControlAddress& server, int64_t rank, const std::string& host, double seconds)
    : address_(server) {
  if (pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) throw Error(concat("pipe2: ", std::strerror(errno)));
  for (const uint32_t address : candidates(server, host)) {
    const int s = connect_to(address, server.port, seconds);
    if (s < 0) continue;
    const int on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection connection;
    connection.socket = s;
    connection.rank = 0;
    connections_.push_back(std::move(connection));
    ControlMessage hello{kHello, static_cast<int32_t>(rank), {server.token[0], server.token[1]}};
    hello.set_text(host);
    send(0, hello);
    return;
  }
}

ControlChannel::~ControlChannel() {
  for (Connection& connection : connections_)
    if (connection.socket >= 0) close(connection.socket);
  for (const int fd : {listener_, wake_[0], wake_[1]})
    if (fd >= 0) close(fd);
}

bool ControlChannel::open() const { return !connections_.empty() && connections_[0].socket >= 0; }

void ControlChannel::wake() {
  const char byte = 0;
  (void)!write(wake_[1], &byte, 1);        // a write that fails because the pipe is full wakes too
}

void ControlChannel::accept_new() {
  for (;;) {
    const int s = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s < 0) return;
    const auto stranger = [](const Connection& other) { return other.rank < 0; };
    if (static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), stranger)) >=
        kMaxStrangers + static_cast<size_t>(ranks_)) {
      close(s);
      continue;
    }
    const int on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection connection;
    connection.socket = s;
    connections_.push_back(std::move(connection));
  }
}

// Takes whole messages out of the received bytes. An invalid first message (hello) closes the connection.
void ControlChannel::take_messages(Connection& connection, std::vector<Event>& events) {
  size_t at = 0;
  for (; connection.in.size() - at >= sizeof(ControlMessage) && connection.socket >= 0; at += sizeof(ControlMessage)) {
    Event event;
    std::memcpy(&event.message, connection.in.data() + at, sizeof event.message);
    event.message.text[sizeof event.message.text - 1] = 0;
    if (connection.rank < 0) {
      const ControlMessage& hello = event.message;
      const bool right = hello.type == kHello && hello.rank > 0 && hello.rank < ranks_ &&
                         hello.values[0] == address_.token[0] && hello.values[1] == address_.token[1];
      if (!right) {
        close(connection.socket);
        connection.socket = -1;
        return;
      }
      connection.rank = hello.rank;
      event.kind = Event::Kind::joined;
    }
    event.rank = connection.rank;
    events.push_back(event);
  }
  connection.in.erase(connection.in.begin(), connection.in.begin() + static_cast<std::ptrdiff_t>(at));
}

void ControlChannel::read_from(Connection& connection, std::vector<Event>& events) {
  char buffer[16 * sizeof(ControlMessage)];
  bool closed = false;
  for (;;) {
    const ssize_t bytes = recv(connection.socket, buffer, sizeof buffer, 0);
    if (bytes < 0 && errno == EINTR) continue;
    closed = bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    if (bytes <= 0) break;
    connection.in.insert(connection.in.end(), buffer, buffer + bytes);
    take_messages(connection, events);
    if (connection.socket < 0) return;
  }
  if (!closed) return;
  close(connection.socket);
  connection.socket = -1;
  if (connection.rank < 0) return;
  Event event;
  event.kind = Event::Kind::closed;
  event.rank = connection.rank;
  events.push_back(event);
}

std::vector<ControlChannel::Event> ControlChannel::poll(double seconds) {
  std::vector<pollfd> waits = {{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};  // poll() ignores a negative listener_
  for (const Connection& connection : connections_) waits.push_back({connection.socket, POLLIN, 0});
  std::vector<Event> events;
  if (::poll(waits.data(), waits.size(), static_cast<int>(std::ceil(seconds * 1e3))) <= 0) return events;
  char bytes[64];
  while (read(wake_[0], bytes, sizeof bytes) > 0) {}
  for (size_t i = 2; i < waits.size(); ++i)
    if (waits[i].revents != 0) read_from(connections_[i - 2], events);
  if (listener_ >= 0) {
    std::erase_if(connections_, [](const Connection& connection) { return connection.socket < 0; });
    if (waits[1].revents != 0) accept_new();
  }
  return events;
}

void ControlChannel::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t bytes = ::send(connection.socket, connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return;                // read_from() notices a closed connection
    connection.out.erase(connection.out.begin(), connection.out.begin() + bytes);
  }
}

void ControlChannel::send(int64_t rank, const ControlMessage& message) {
  for (Connection& connection : connections_) {
    if (connection.rank != rank || connection.socket < 0) continue;
    flush(connection);
    if (!connection.out.empty()) return;   // the peer does not read: it misses this message
    const char* bytes = reinterpret_cast<const char*>(&message);
    connection.out.assign(bytes, bytes + sizeof message);
    flush(connection);
  }
}

}  // namespace blipft
